//! The report of `nacre bench talks` in a real browser, as its readers see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nacre_testkit::requirements::find_program;
use nacre_testkit::run::Run;
use nacre_testkit::{binary, program, text, wait};

/// Widths of a phone, a tablet and a screen, in CSS pixels.
const WIDTHS: [u32; 3] = [390, 768, 1280];

/// Examines the page and appends the findings to it, as JSON. The page itself has no script.
const LOOK: &str = r##"<script>
addEventListener("load", () => {
    const found = { fetched: performance.getEntriesByType("resource").map((entry) => entry.name), links: [], marks: [], unnamed: [] };
    for (const link of document.querySelectorAll("a")) {
        const target = link.getAttribute("href");
        if (!target.startsWith("#") || !document.getElementById(target.slice(1))) found.links.push(target);
    }
    const all = [...document.querySelectorAll("figure[data-table]")];
    for (const figure of all) {
        const table = document.getElementById(figure.dataset.table);
        const marks = figure.querySelectorAll("svg .mark").length;
        const values = table ? table.querySelectorAll("td.value").length : -1;
        if (marks === 0 || marks !== values) found.marks.push(`${figure.dataset.table}: ${marks} marks, ${values} values`);
    }
    for (const drawing of document.querySelectorAll("svg")) {
        if (drawing.getAttribute("role") !== "img" || !drawing.getAttribute("aria-label")) found.unnamed.push(drawing.parentNode.id);
    }
    for (const head of document.querySelectorAll("th")) if (!head.scope) found.unnamed.push(head.textContent);
    const root = document.documentElement;
    // A window cannot be as narrow as a phone: the page lies in a frame, whose width counts.
    found.width = innerWidth;
    found.overflow = Math.max(root.scrollWidth, document.body.scrollWidth) - root.clientWidth;
    found.figures = all.length;
    parent.postMessage(JSON.stringify(found), "*");
});
</script>"##;

/// Returns a page with the report in a frame of each width, which collects the findings.
fn around(page: &str) -> String {
    let frames = WIDTHS.map(|width| {
        format!("<iframe src=\"{page}\" style=\"border:0;width:{width}px;height:800px\"></iframe>\n")
    });
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>test</title>\n<script>addEventListener('message', (event) => {{\n\
         const line = document.createElement('p'); line.className = 'found'; line.textContent = event.data; document.body.append(line); }});\n\
         </script><body>{}</body>",
        frames.concat()
    )
}

/// Returns a headless browser; its home is a new directory.
fn chromium(run: &Run, name: &str) -> Command {
    let Some(program) = find_program("chromium") else {
        panic!("the test needs the program chromium: scripts/test-deps installs it");
    };
    let mut command = run.command(program);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.args(["--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1400,900"]);
    command.arg(format!("--user-data-dir={}", run.make(name).display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the newest results in the tree: of the talks, or those of other file systems.
fn results(is_of_peers: bool) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let entries = fs::read_dir(&directory).expect("results are kept").flatten().map(|entry| entry.path());
    let is_wanted = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.ends_with(".json") && name.ends_with("-peers.json") == is_of_peers
    };
    entries.filter(is_wanted).max().expect("a file of results")
}

/// Returns the findings on the page, a line of JSON for each width, and the page's text.
fn look(run: &Run, page: &Path) -> (Vec<String>, String) {
    let outer = page.with_file_name("around.html");
    let name = page.file_name().and_then(|name| name.to_str()).expect("a plain name");
    fs::write(&outer, around(name)).expect("written");
    let mut command = chromium(run, "browser");
    command.arg("--dump-dom").arg(format!("file://{}", outer.display()));
    let child = command.spawn().expect("chromium starts");
    let output = wait::deadline(program::LIMIT, "the browser", move || child.wait_with_output());
    let output = output.expect("our child");
    let (dom, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines = dom.split("<p class=\"found\">").skip(1);
    let lines = lines.filter_map(|line| line.split("</p>").next()).map(|line| line.replace("&quot;", "\""));
    (lines.collect(), said.into_owned())
}

#[test]
fn the_report_is_whole_in_a_browser_on_a_phone_and_on_a_screen() {
    let run = Run::new();
    let out = run.directory().join("report");
    let (file, peers) = (results(false), results(true));
    let words = ["bench", "talks", "--render", text(&file), "--peers", text(&peers), "--out", text(&out)];
    program::run(binary::nacre_with_bench(), words).success();
    assert!(!out.join("results.json").exists(), "only the report is written");
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    assert!(!page.contains("<script") && !page.contains("src="), "the page needs nothing else");
    let looked = out.join("looked.html");
    fs::write(&looked, page.replacen("</body>", &format!("{LOOK}</body>"), 1)).expect("written");
    let (found, said) = look(&run, &looked);
    assert_eq!(found.len(), WIDTHS.len(), "{found:?}\n{said}");
    for width in WIDTHS {
        let line = found.iter().find(|line| line.contains(&format!("\"width\":{width},")));
        let line = line.unwrap_or_else(|| panic!("no frame of {width} px in {found:?}"));
        for nothing in ["\"fetched\":[]", "\"links\":[]", "\"marks\":[]", "\"unnamed\":[]", "\"overflow\":0"]
        {
            assert!(line.contains(nothing), "{nothing} at {width} px: {line}");
        }
        // Each of five cards has a picture, and each experiment at least a chart.
        let figures =
            line.split("\"figures\":").nth(1).and_then(|rest| rest.trim_end_matches('}').parse().ok());
        assert!(figures.is_some_and(|count: usize| count >= 15), "{line}");
    }
    assert!(!said.contains("CONSOLE"), "{said}");
}
