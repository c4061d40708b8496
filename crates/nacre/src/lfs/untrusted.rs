//! Command lines and templates from mutations of valid ones: parsers refuse them or not, and never panic.

use super::{COMMANDS, Run, dirstripe, find, getopt, migrate, quota, setquota, setstripe, template};

#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

/// Parses a line as a call of `lfs` without running it, or the lines after the first as a template.
fn read(bytes: &[u8]) {
    if let Some(text) = bytes.strip_prefix(b"template\n") {
        let _ = std::str::from_utf8(text).map(template::parse);
        return;
    }
    let words = getopt::words_of(bytes);
    let Some((name, args)) = words.split_first() else { return };
    if name == "find" {
        let _ = find::checked(args);
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else { return };
    let Run::Parsed(specs, _) = command.run else { return };
    let Ok(parsed) = getopt::parse(args, specs) else { return };
    let _ = match command.name {
        "setstripe" => setstripe::checked(&parsed),
        // Options that read files.
        "migrate" if !parsed.has('Y') && !parsed.has('y') => migrate::checked(&parsed),
        "mkdir" | "setdirstripe" => dirstripe::checked(&parsed),
        "quota" => quota::checked(&parsed),
        "setquota" => setquota::checked(&parsed),
        _ => Ok(()),
    };
}

const LINES: &[&str] = &[
    "setstripe -c 4 -S 1M -i 1 -p pool file",
    "setstripe -E 1M -L mdt -E 64M -c 1 -E -1 -c -1 -S 4M file",
    "setstripe -o 0,2-3,5 --overstripe-count 4 file",
    "setstripe -E 1G -z 64M -E eof -z 256M --comp-flags=prefer file",
    "setstripe --component-add -E 4G -c 8 file",
    "setstripe --component-del -I 2 file",
    "setstripe --foreign=s3 --xattr bucket/object --flags 0x1 file",
    "migrate -c 2 --bandwidth-limit 10M --stats-interval 5 -v file",
    "migrate -A -K 4 -M 1G -X 8 --non-block file",
    "migrate -m 0,1 -H crush -c 2 dir",
    "mkdir -c 4 -i 0-1,3 -H crush -o 755 --max-inherit 3 --max-inherit-rr 2 dir",
    "setdirstripe -D -C 8 -i -1 dir",
    "setdirstripe -d dir",
    "quota -u root --pool flash -v /mnt/nacre",
    "quota -a -g -s 5 -e 100 /mnt/nacre",
    "setquota -p 1000 -b 10G -B 11G -i 1M -I 2M /mnt/nacre",
    "setquota -t -u --block-grace 1w2d --inode-grace 3h5m /mnt/nacre",
    "getstripe -c -S -y --component-start=+1M dir",
    "ladvise -a willread -s 0 -e 1G file",
    "find dir -name *.[ch] ! -size +1.5M -mtime -3d --newerat 2024-01-02 -type f --printf %p\\t%s\\n",
    "find dir --stripe-count +2 --ost 0-3,nacre-OST0001_UUID --pool flash --layout raid0,^released -0",
    "find dir --component-flags ^init,prefer --mdt-hash ^crush,migrating --perm /u+w,g=rx --xattr user.a=.*",
    "template\nlcm_layout_gen: 3\nlcm_entry_count: 2\ncomponents:\n  - lcme_id: 1\n    lcme_flags: init\n    \
     lcme_extent.e_start: 0\n    lcme_extent.e_end: 1048576\n    sub_layout:\n      lmm_stripe_count: 1\n      \
     lmm_stripe_size: 1048576\n      lmm_pattern: raid0\n  - lcme_id: 2\n    lcme_extent.e_start: 1048576\n    \
     lcme_extent.e_end: EOF\n    sub_layout:\n      lmm_stripe_count: -1\n      lmm_objects:\n      - \
     l_ost_idx: 1\n        l_fid: 0x100010000:0x2:0x0\n",
    "template\nlmm_stripe_count: 2\nlmm_stripe_size: 1048576\nlmm_pattern: raid0\nlmm_stripe_offset: 1\n\
     lmm_pool: flash\n",
];

#[test]
fn mutated_command_lines_and_templates_never_panic() {
    let valid: Vec<Vec<u8>> = LINES.iter().map(|line| line.as_bytes().to_vec()).collect();
    mutate::exercise("commands", &valid, 60_000, read);
}
