//! What of this process is where: `/proc/self/maps`.

/// A piece of a file that is mapped and can be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    pub(crate) path: String,
}

pub(crate) fn read() -> Vec<Mapping> {
    std::fs::read_to_string("/proc/self/maps").map(|text| parse(&text)).unwrap_or_default()
}

/// In the order of their addresses, as the kernel writes them.
fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let path = words.nth(2)?;
    let (start, end) = range.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    rights.contains('x').then_some(())?;
    path.starts_with('/').then_some(())?;
    Some(Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_found() {
        let text = "55a000-55b000 r--p 00000000 08:01 12 /usr/bin/cox\n55b000-55f000 r-xp 00001000 08:01 12 /usr/bin/cox\n\
                    7f0000-7f1000 r-xp 00000000 00:00 0 [vdso]\nnonsense\n7f2000-7f3000 rw-p 00000000 00:00 0 \n";
        let expected = Mapping { start: 0x55b000, end: 0x55f000, offset: 0x1000, path: "/usr/bin/cox".into() };
        assert_eq!(parse(text), [expected]);
        assert!(!read().is_empty());
    }
}
