use super::{fails, holds};

#[test]
fn conversions_and_times() {
    holds(&[
        "int('12') == 12 && int(3.9) == 3 && int(5u) == 5 && uint(3) == 3u && double('1.5') == 1.5",
        "string(1) == '1' && string(true) == 'true' && string(1.5) == '1.5' && string(1e30) == '1e+30'",
        "string(b'abc') == 'abc' && bytes('abc') == b'abc' && bool('true')",
        "string(timestamp('2020-02-03T04:05:06Z')) == '2020-02-03T04:05:06Z'",
        "string(duration('1h30m')) == '5400s' && string(duration('1.5s')) == '1.5s'",
        "timestamp('2020-01-01T00:00:00Z') + duration('24h') == timestamp('2020-01-02T00:00:00Z')",
        "timestamp('2020-01-02T00:00:00Z') - timestamp('2020-01-01T00:00:00Z') == duration('86400s')",
        "timestamp('2020-02-03T04:05:06.789Z').getFullYear() == 2020",
        "timestamp('2020-02-03T04:05:06Z').getMonth() == 1",
        "timestamp('2020-02-03T04:05:06Z').getDate() == 3 && timestamp('2020-02-03T04:05:06Z').getDayOfMonth() == 2",
        "timestamp('2020-02-03T04:05:06Z').getDayOfWeek() == 1 && timestamp('2020-02-03T04:05:06Z').getDayOfYear() == 33",
        "timestamp('2020-02-03T04:05:06Z').getHours('+02:00') == 6",
        "timestamp('2020-02-03T04:05:06Z').getMinutes() == 5 && duration('90m').getHours() == 1",
        "duration('-90s').getMinutes() == -1 && duration('1s') < duration('1m')",
        "timestamp(0) == timestamp('1970-01-01T00:00:00Z') && int(timestamp('1970-01-01T00:01:00Z')) == 60",
    ]);
}

#[test]
fn strings() {
    holds(&[
        "'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')",
        "'hello'.matches('^h.*o$') && matches('a1', '[a-z]\\\\d') && !'٣'.matches('\\\\d')",
        "s.matches(s)",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']",
        "'abc'.split('') == ['a', 'b', 'c'] && ['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab'",
        "'hello'.replace('l', 'L') == 'heLLo' && 'hello'.replace('l', 'L', 1) == 'heLlo'",
        "'Ab'.lowerAscii() == 'ab' && 'Ab'.upperAscii() == 'AB' && ' x '.trim() == 'x'",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco'",
        "'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3 && 'hello'.lastIndexOf('l') == 3",
        "'hello'.indexOf('x') == -1 && 'abc'.indexOf('') == 0",
        "'hello'.charAt(1) == 'e' && 'hello'.charAt(5) == ''",
        "'gums'.reverse() == 'smug' && strings.quote('a\"b') == '\"a\\\\\"b\"'",
        "'%d %s %.2f %x %b'.format([1, 'a', 1.5, 255, 5]) == '1 a 1.50 ff 101'",
        "'%s %s'.format([[1, 2], {'k': true}]) == '[1, 2] {k: true}'",
        "'%e %e'.format([3.14, 0.00123]) == '3.140000×10⁰⁰ 1.230000×10⁻⁰³'",
        "'abc 123 d4'.find('[0-9]+') == '123' && 'abc'.find('[0-9]') == ''",
        "'1 22 3'.findAll('[0-9]+') == ['1', '22', '3'] && '1 22 3'.findAll('[0-9]+', 1) == ['1']",
    ]);
    fails(&[
        ("'abc'.substring(2, 1)", "invalid substring range. start: 2, end: 1"),
        ("'abc'.charAt(4)", "index out of range: 4"),
    ]);
}

#[test]
fn lists_and_sets() {
    holds(&[
        "[1, 2, 3].isSorted() && !['b', 'a'].isSorted() && [1, 2].sum() == 3 && [1, 3, 2].max() == 3",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "[1, 2, 3, 4].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]",
        "[3, 1, 2].sort() == [1, 2, 3] && [1, 1, 2].distinct() == [1, 2] && lists.range(3) == [0, 1, 2]",
        "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && [1, 2].reverse() == [2, 1]",
        "sets.contains([1, 2, 3], [1, 2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])",
    ]);
    fails(&[("[].min()", "min called on empty list")]);
}

#[test]
fn kubernetes_types() {
    holds(&[
        "quantity('1Gi').isGreaterThan(quantity('500Mi')) && quantity('1k') == quantity('1000')",
        "quantity('50k').add(20) == quantity('50020') && quantity('50M').sub(quantity('50M')).sign() == 0",
        "isQuantity('1.3Gi') && !isQuantity('x') && quantity('200M').compareTo(quantity('0.3G')) == -1",
        "quantity('50M').isInteger() && quantity('50').asInteger() == 50 && quantity('1500m').asApproximateFloat() == 1.5",
        "url('https://u:p@example.com:80/p%20a?k=v&k=w#f').getHost() == 'example.com:80'",
        "url('https://example.com:80/a b').getEscapedPath() == '/a%20b' && url('https://[::1]:80/').getHostname() == '::1'",
        "url('https://example.com/?k=v&k=w').getQuery()['k'] == ['v', 'w'] && url('https://x/').getPort() == ''",
        "isURL('/absolute') && !isURL('../relative') && url('HTTPS://x').getScheme() == 'https'",
        "ip('192.168.0.1').family() == 4 && ip('::1').isLoopback() && isIP('1.2.3.4') && !isIP('1.2.3')",
        "ip.isCanonical('2001:db8::68') && !ip.isCanonical('2001:DB8::68') && ip('8.8.8.8').isGlobalUnicast()",
        "cidr('192.168.0.0/24').containsIP('192.168.0.5') && !cidr('192.168.0.0/24').containsIP(ip('192.168.1.5'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "cidr('10.1.2.3/8').prefixLength() == 8 && string(cidr('10.1.2.3/8').ip()) == '10.1.2.3' && isCIDR('::/0')",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.2.3-alpha').isLessThan(semver('1.2.3'))",
        "isSemver('1.2.3') && !isSemver('v1.2') && semver('v1.2', true).minor() == 2",
        "!format.dns1123Label().validate('my-name').hasValue()",
        "format.dns1123Label().validate('My_Name').value().size() == 1",
        "format.named('uuid').value().validate('x').value() == ['does not match the UUID format']",
        "type(quantity('1')) == kubernetes.Quantity && type(ip('::1')) == net.IP",
    ]);
}
