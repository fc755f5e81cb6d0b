//! Each transaction is told to the kernel both ways; `nft` must show the same afterwards.

use std::io::Write;
use std::process::{Command, Stdio};

use super::*;

/// Runs in a network namespace that ends with the thread.
fn in_namespace<T: Send + 'static>(inside: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        inside()
    });
    thread.join().unwrap()
}

fn nft(args: &[&str], input: &str) -> String {
    let mut child = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{input}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What `nft` lists, in an order of its own: elements of sets have none.
fn listed() -> Vec<String> {
    let text = nft(&["list", "ruleset"], "");
    let lines =
        text.lines().flat_map(|line| match line.trim_start().starts_with("elements") || !line.contains(" . ") {
            true => line.split([',', '{', '}']).map(|part| part.trim().to_owned()).collect::<Vec<_>>(),
            false => vec![line.trim().to_owned()],
        });
    let mut parts: Vec<String> = lines.collect();
    parts.sort();
    parts
}

fn same_either_way(transactions: &[&str]) {
    let owned: Vec<String> = transactions.iter().map(|text| (*text).to_owned()).collect();
    let texts = owned.clone();
    let expected = in_namespace(move || {
        texts.iter().for_each(|text| drop(nft(&["-f", "-"], text)));
        listed()
    });
    let ours = in_namespace(move || {
        owned.iter().for_each(|text| apply(text).unwrap_or_else(|error| panic!("{error}\n{text}")));
        listed()
    });
    assert_eq!(ours, expected, "{transactions:?}");
}

#[test]
fn services_are_the_same_either_way() {
    for (ip, addr, one, two, port_of) in [
        ("ip", "ipv4_addr", "10.43.0.9", "10.42.0.2", "10.42.0.2:80"),
        ("ip6", "ipv6_addr", "fd43::9", "fd42::2", "[fd42::2]:80"),
    ] {
        let declared = format!(
            "add table {ip} t {{ comment \"services of the cluster\" ; }}\n\
             add map {ip} t services {{ type {addr} . inet_proto . inet_service : verdict ; }}\n\
             add map {ip} t ports {{ type inet_proto . inet_service : verdict ; }}\n\
             add set {ip} t hairpin {{ type {addr} . {addr} ; }}\n\
             add set {ip} t allowed {{ type {addr} . inet_proto . inet_service . {addr} ; flags interval ; }}\n\
             add set {ip} t clients {{ type {addr} ; flags dynamic,timeout ; size 65536 ; timeout 10s ; }}\n\
             add map {ip} t endpoints {{ typeof {ip} daddr . sctp dport . numgen random mod 65536 : {ip} daddr . sctp dport ; }}\n\
             add map {ip} t node-endpoints {{ typeof udp dport . numgen random mod 65536 : {ip} daddr . udp dport ; }}\n\
             add chain {ip} t refuse\n\
             add rule {ip} t refuse meta l4proto tcp reject with tcp reset\n\
             add rule {ip} t refuse reject\n\
             add chain {ip} t one\n\
             add rule {ip} t one {ip} daddr . meta l4proto . th dport . {ip} saddr != @allowed drop\n\
             add rule {ip} t one fib saddr type local meta mark set meta mark | 0x4000 dnat to {ip} daddr . sctp dport . numgen random mod 3 offset 32768 map @endpoints\n\
             add rule {ip} t one dnat to udp dport . numgen random mod 2 map @node-endpoints\n\
             add chain {ip} t sticky\n\
             add rule {ip} t sticky update @clients {{ {ip} saddr timeout 10s }}\n\
             add rule {ip} t sticky meta l4proto tcp dnat to {port_of}\n\
             add rule {ip} t sticky {ip} saddr @clients goto one\n\
             add rule {ip} t sticky numgen random mod 2 vmap {{ 0 : goto one, 1 : goto refuse }}\n\
             add chain {ip} t prerouting {{ type nat hook prerouting priority -100 ; }}\n\
             add rule {ip} t prerouting {ip} daddr . meta l4proto . th dport vmap @services\n\
             add rule {ip} t prerouting fib daddr type local meta l4proto . th dport vmap @ports\n\
             add chain {ip} t postrouting {{ type nat hook postrouting priority 100 ; }}\n\
             add rule {ip} t postrouting ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random\n\
             add rule {ip} t postrouting meta mark & 0x4000 == 0x4000 meta mark set meta mark ^ 0x4000 masquerade\n\
             add chain {ip} t input {{ type filter hook input priority 0 ; }}\n\
             add rule {ip} t input ct state new ct status & dnat == 0 iifname != \"br0\" drop\n\
             add rule {ip} t input iifname \"veth*\" jump refuse\n"
        );
        let filled = format!(
            "add element {ip} t services {{ {one} . tcp . 80 : goto one, {one} . udp . 53 : goto refuse, {one} . sctp . 1 : drop }}\n\
             add element {ip} t ports {{ tcp . 30080 : goto one }}\n\
             add element {ip} t hairpin {{ {two} . {two} }}\n\
             add element {ip} t allowed {{ {one} . tcp . 80 . {two}, {one} . tcp . 81-90 . {one} }}\n\
             add element {ip} t endpoints {{ {one} . 80 . 32768 : {two} . 8080, {one} . 80 . 1 : {two} . 8081 }}\n\
             add element {ip} t node-endpoints {{ 30080 . 7 : {two} . 8080 }}\n"
        );
        let changed = format!(
            "delete element {ip} t services {{ {one} . udp . 53 }}\n\
             delete element {ip} t allowed {{ {one} . tcp . 81-90 . {one} }}\n\
             flush chain {ip} t sticky\n\
             add rule {ip} t sticky drop\n\
             add chain {ip} t more\n\
             delete chain {ip} t more\n\
             add set {ip} t more {{ type {addr} ; }}\n\
             delete set {ip} t more\n"
        );
        same_either_way(&[&declared, &filled, &changed]);
        same_either_way(&[&declared, &format!("delete table {ip} t\nadd table {ip} t\n")]);
    }
}

#[test]
fn ports_and_masquerading_are_the_same_either_way() {
    same_either_way(&[
        "add table inet t\n\
         add map inet t address4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; }\n\
         add map inet t any6 { type inet_proto . inet_service : ipv6_addr . inet_service ; }\n\
         add map inet t sources6 { type ipv6_addr : verdict ; }\n\
         add set inet t all4 { type ipv4_addr ; }\n\
         add chain inet t hostports\n\
         add rule inet t hostports dnat ip to ip daddr . meta l4proto . th dport map @address4\n\
         add rule inet t hostports meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6\n\
         add chain inet t leaves\n\
         add rule inet t leaves masquerade\n\
         add chain inet t output { type nat hook output priority -100 ; }\n\
         add rule inet t output fib daddr type local jump hostports\n\
         add chain inet t postrouting { type nat hook postrouting priority 100 ; }\n\
         add rule inet t postrouting ip saddr { 10.42.1.0/24 } ip daddr != { 10.42.0.0/16, 224.0.0.0/4 } masquerade fully-random\n\
         add rule inet t postrouting ip6 saddr { fd42::/64, fd42:0:0:1::/64, fd43::1 } ip6 daddr != { ff00::/8 } masquerade\n\
         add rule inet t postrouting ip daddr { 10.1.0.0/16, 0.0.0.0/1, 255.255.255.255 } return\n\
         add rule inet t postrouting ip6 saddr vmap @sources6\n\
         add rule inet t postrouting ct status dnat ip daddr @all4 masquerade\n",
        "add element inet t address4 { 127.0.0.1 . tcp . 80 comment \"abc\" : 10.0.0.1 . 8080 }\n\
         add element inet t any6 { udp . 53 comment \"d\" : fd00::1 . 53 }\n\
         add element inet t all4 { 10.0.0.1 comment \"abc\" }\n\
         add element inet t sources6 { fd42::2 : goto leaves }\n",
    ]);
}

#[test]
fn policies_are_the_same_either_way() {
    same_either_way(&[
        "add table inet t\n\
         add map inet t ingress4 { type ipv4_addr : verdict ; }\n\
         add set inet t open { type inet_proto . inet_service ; flags interval ; }\n\
         add set inet t blocks { type ipv6_addr ; flags interval ; }\n\
         add set inet t ranges { type ipv4_addr . inet_proto . inet_service ; flags interval ; }\n\
         add chain inet t pod\n\
         add rule inet t pod meta l4proto . th dport @open return\n\
         add rule inet t pod ip6 saddr @blocks return\n\
         add rule inet t pod ip daddr . meta l4proto . th dport @ranges accept\n\
         add rule inet t pod ip saddr 10.42.0.7 tcp dport 80 return\n\
         add rule inet t pod ip6 saddr fd42::7 sctp dport 5000 return\n\
         add rule inet t pod ip6 daddr fd42::7 return\n\
         add rule inet t pod drop\n\
         add chain inet t forward { type filter hook forward priority 0 ; }\n\
         add rule inet t forward ct direction reply ct state established,related accept\n\
         add rule inet t forward meta l4proto != sctp ct direction reply ct state established,related accept\n\
         add rule inet t forward icmpv6 type { 133, 135, 136 } accept\n\
         add rule inet t forward ip daddr vmap @ingress4\n",
        "add element inet t ingress4 { 10.42.0.2 : jump pod }\n\
         add element inet t open { tcp . 80, udp . 5000-6000 }\n\
         add element inet t blocks { fd00::/64, fd00:1:: }\n\
         add element inet t ranges { 10.0.0.0-10.0.0.9 . tcp . 80-90, 192.0.2.0/24 . sctp . 0-65535 }\n",
        "delete element inet t blocks { fd00:1:: }\ndelete element inet t open { udp . 5000-6000 }\n",
    ]);
}

#[test]
fn rules_for_bridges_are_the_same_either_way() {
    same_either_way(&[
        "add table bridge t\n\
         add map bridge t ports { type ifname : verdict ; }\n\
         add set bridge t macs { type ifname . ether_addr ; }\n\
         add set bridge t sources4 { type ifname . ipv4_addr ; }\n\
         add set bridge t sources6 { type ifname . ipv6_addr ; }\n\
         add chain bridge t guarded\n\
         add rule bridge t guarded iifname . ether saddr != @macs drop\n\
         add rule bridge t guarded meta protocol arp iifname . arp saddr ether != @macs drop\n\
         add rule bridge t guarded meta protocol arp iifname . arp saddr ip @sources4 accept\n\
         add rule bridge t guarded meta protocol arp arp saddr ip 0.0.0.0 accept\n\
         add rule bridge t guarded meta protocol ip iifname . ip saddr @sources4 accept\n\
         add rule bridge t guarded meta protocol ip ip saddr 0.0.0.0 udp dport 67 accept\n\
         add rule bridge t guarded meta protocol ip6 icmpv6 type { 134, 137 } drop\n\
         add rule bridge t guarded meta protocol ip6 icmpv6 type 136 drop\n\
         add rule bridge t guarded meta protocol ip6 iifname . ip6 saddr @sources6 accept\n\
         add rule bridge t guarded meta protocol ip6 ip6 saddr :: icmpv6 type 143 accept\n\
         add chain bridge t prerouting { type filter hook prerouting priority -300 ; }\n\
         add rule bridge t prerouting iifname vmap @ports\n",
        "add element bridge t ports { \"veth-a\" comment \"abc\" : goto guarded }\n\
         add element bridge t macs { \"veth-a\" . 02:00:00:00:00:01 comment \"abc\" }\n\
         add element bridge t sources4 { \"veth-a\" . 10.0.0.1, \"veth-b\" . 10.0.0.2 }\n\
         add element bridge t sources6 { \"veth-a\" . fe80::1 comment \"abc\" }\n",
        "delete element bridge t sources4 { \"veth-b\" . 10.0.0.2 }\n",
    ]);
}

#[test]
fn what_is_refused_changes_nothing_and_is_named() {
    in_namespace(|| {
        let first = apply("add table inet t\nadd chain inet t c\nadd rule inet t c frobnicate\n").unwrap_err();
        assert!(first.to_string().ends_with("add rule inet t c frobnicate"), "{first}");
        let second = apply("add table inet t\nadd chain inet t c\nadd rule inet t gone drop\n").unwrap_err();
        assert!(second.to_string().ends_with("add rule inet t gone drop"), "{second}");
        let third = apply("add element inet nowhere s { 10.0.0.1 }\n").unwrap_err();
        assert!(third.to_string().contains("nowhere"), "{third}");
        assert_eq!(tables().unwrap(), []);
        for line in
            ["add element inet t s { 10.0.0.1 . tcp }", "add", "add rule inet t c ip saddr", "add chain inet t c {"]
        {
            assert!(matches!(apply(line), Err(Error::Syntax(_))), "{line}");
        }
    });
}

#[test]
fn elements_are_read_back_and_tables_deleted() {
    in_namespace(|| {
        apply(
            "add table inet t\nadd chain inet t c\n\
             add map inet t m { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; }\n\
             add map inet t v { type ipv6_addr : verdict ; }\n\
             add element inet t m { 127.0.0.1 . udp . 53 comment \"owner\" : 10.0.0.1 . 5353 }\n\
             add element inet t v { fd00::1 : goto c }\nadd table ip other\n",
        )
        .unwrap();
        let found = elements("inet t", "m").unwrap();
        let expected = Element {
            key: "127.0.0.1 . udp . 53".into(),
            target: Some(Target::Value("10.0.0.1 . 5353".into())),
            expires: None,
            comment: Some("owner".into()),
        };
        assert_eq!(found, [expected]);
        let found = elements("inet t", "v").unwrap();
        assert_eq!((found[0].key.as_str(), &found[0].target), ("fd00::1", &Some(Target::Chain("c".into()))));
        assert_eq!(elements("inet t", "x").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(elements("t", "m").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        apply(
            "add table bridge b\nadd set bridge b s { type ifname . ether_addr ; }\n\
             add chain bridge b c\nadd rule bridge b c meta protocol ip6 ip6 saddr :: icmpv6 taddr fd00::1 accept\n\
             add element bridge b s { \"veth-a\" . 02:00:00:00:00:01 comment \"owner\" }\n",
        )
        .unwrap();
        let found = elements("bridge b", "s").unwrap();
        assert_eq!((found[0].key.as_str(), found[0].comment.as_deref()), ("veth-a . 02:00:00:00:00:01", Some("owner")));
        apply("delete table bridge b\n").unwrap();
        let all = tables().unwrap();
        assert_eq!(all.len(), 2);
        delete_tables(&all[..1]).unwrap();
        assert_eq!(tables().unwrap(), all[1..]);
    });
}

#[test]
fn an_element_goes_in_its_own_time() {
    in_namespace(|| {
        apply(
            "add table ip t\nadd set ip t s { type ipv4_addr ; flags dynamic,timeout ; size 9 ; timeout 7200s ; }\n\
             add element ip t s { 10.0.0.1, 10.0.0.2 expires 3600s }\n",
        )
        .unwrap();
        let mut found = elements("ip t", "s").unwrap();
        found.sort_by(|one, other| one.key.cmp(&other.key));
        let left: Vec<u64> = found.iter().map(|element| element.expires.unwrap_or_default().as_secs()).collect();
        let [whole, part] = left[..] else { panic!("{found:?}") };
        assert!(whole <= 7200 && whole > part && part <= 3600 && part > 0, "{found:?}");
    });
}

#[test]
fn a_large_transaction_is_one() {
    in_namespace(|| {
        let mut text =
            "add table inet t\nadd set inet t s { type ipv4_addr . inet_proto . inet_service ; }\n".to_owned();
        let all: Vec<String> = (0..50_000u32).map(|i| format!("10.{}.{}.1 . tcp . 80", i >> 8, i & 255)).collect();
        text.push_str(&format!("add element inet t s {{ {} }}\n", all.join(", ")));
        apply(&text).unwrap();
        assert_eq!(elements("inet t", "s").unwrap().len(), 50_000);
    });
}
