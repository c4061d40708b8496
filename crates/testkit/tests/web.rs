//! `nacre web` and `nacre top`: access to the pages, and what a browser and a terminal show.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nacre_testkit::requirements::{find_program, have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Ports, Shape, http, program, text, wait};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Widths of a phone, a tablet and a screen, in CSS pixels.
const WIDTHS: [u32; 3] = [390, 820, 1440];

/// `nacre web`, ended when dropped.
struct Web {
    child: Child,
    port: u16,
    token: String,
    file: PathBuf,
    _output: BufReader<ChildStdout>,
    _ports: Ports,
}

impl Web {
    fn start(cluster: &Cluster) -> Web {
        let ports = Ports::take();
        let port = ports.first();
        let mut command = cluster.command();
        command.arg("web").arg(cluster.data()).args(["--listen", &port.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("nacre starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut link = String::new();
        output.read_line(&mut link).expect("UTF-8");
        let link = link.trim_end();
        let (address, token) = link.split_once("/#token=").expect("a link with a token");
        assert_eq!(address, format!("http://127.0.0.1:{port}"));
        let file = cluster.data().join("run/web.token");
        Web { child, port, token: token.to_owned(), file, _output: output, _ports: ports }
    }

    fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> http::Reply {
        http::ask(self.port, method, path, headers, body).expect("the server runs")
    }

    fn log_in(&self) -> String {
        let reply = self.ask("POST", "/api/login", &[], &self.token);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let cookie = reply.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains(&self.token), "the cookie is not the token");
        format!("Cookie: {}", cookie.split(';').next().expect("a pair"))
    }

    fn state(&self, cookie: &str) -> Value {
        let reply = self.ask("GET", "/api/state", &[cookie], "");
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str(&reply.body).expect("JSON")
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        program::signal(self.child.id(), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn cluster(shape: Shape) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    Some(Cluster::start(shape)).filter(|cluster| !cluster.is_foreign())
}

fn work(cluster: &Cluster, round: usize) {
    let file = cluster.mount().join(format!("f{round}"));
    fs::write(&file, vec![7; 2 << 20]).expect("written");
    fs::File::open(&file).expect("open").sync_all().expect("durable");
    fs::rename(&file, cluster.mount().join(format!("g{round}"))).expect("renamed");
}

#[test]
fn only_who_knows_the_token_sees_figures() {
    let Some(mut cluster) = cluster(Shape::Embedded) else { return };
    let web = Web::start(&cluster);
    let mode = fs::metadata(&web.file).expect("the token is stored").permissions().mode();
    assert_eq!((mode & 0o777, fs::read_to_string(&web.file).expect("text")), (0o600, web.token.clone()));
    let page = web.ask("GET", "/", &[], "");
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'",
        "x-frame-options: DENY",
        "x-content-type-options: nosniff",
    ] {
        assert!(page.head.contains(header), "{header} in {}", page.head);
    }
    assert!(!page.body.contains("http://") && !page.body.contains("https://"), "nothing from elsewhere");
    assert_eq!(web.ask("GET", "/api/state", &[], "").status, 401);
    let cookie = web.log_in();
    assert!(web.state(&cookie)["view"].is_object());
    for wrong in ["", "x", &web.token[1..], &format!("{}0", web.token)] {
        assert_eq!(web.ask("POST", "/api/login", &[], wrong).status, 401, "{wrong}");
    }
    let wrong = format!("{}0", &cookie[..cookie.len() - 1]);
    let wrong = if wrong == cookie { format!("{}1", &cookie[..cookie.len() - 1]) } else { wrong };
    assert_eq!(web.ask("GET", "/api/state", &[&wrong], "").status, 401);
    let token_as_cookie = format!("Cookie: nacre-web={}", web.token);
    assert_eq!(web.ask("GET", "/api/state", &[&token_as_cookie], "").status, 401);
    // A page of another server, and a name of another server for this address.
    let host = format!("Host: localhost:{}", web.port);
    let other = ["Origin: http://evil.example", &cookie, &host];
    assert_eq!(web.ask("GET", "/api/state", &other, "").status, 403);
    assert_eq!(web.ask("GET", "/api/state", &["Host: evil.example", &cookie], "").status, 403);
    assert_eq!(web.ask("POST", "/api/state", &[&cookie], "").status, 404, "nothing can be changed");
    let file = web.file.clone();
    drop(web);
    assert!(!file.exists(), "the token goes with the server");
    cluster.stop_and_check();
}

#[test]
fn the_figures_follow_what_happens() {
    let Some(mut cluster) = cluster(Shape::Separate) else { return };
    let web = Web::start(&cluster);
    let cookie = web.log_in();
    let mut round = 0;
    let view = wait::until(LIMIT, "throughput is seen", || {
        work(&cluster, round);
        round += 1;
        let state = web.state(&cookie);
        let total = &state["view"]["total"];
        (total["write"].as_f64() > Some(0.0) && total["metadata"].as_f64() > Some(0.0)).then_some(state)
    });
    let targets = view["view"]["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), 5, "an MDT and four OSTs: {targets:?}");
    assert!(targets.iter().all(|target| target["state"] == "up" && target["size"].as_f64() > Some(0.0)));
    assert!(!view["history"]["write"].as_array().expect("a curve").is_empty());
    cluster.kill("ost0002");
    wait::until(LIMIT, "the alert is there", || {
        let state = web.state(&cookie);
        let alerts = state["view"]["alerts"].as_array().expect("alerts").clone();
        alerts
            .iter()
            .any(|alert| alert["text"].as_str().is_some_and(|text| text.contains("OST0002")))
            .then_some(())
    });
    cluster.start_all();
    wait::until(LIMIT, "the alert is gone", || {
        let state = web.state(&cookie);
        let missing =
            |alert: &Value| alert["text"].as_str().is_some_and(|text| text.contains("does not answer"));
        (!state["view"]["alerts"].as_array().expect("alerts").iter().any(missing)).then_some(())
    });
    drop(web);
    cluster.stop_and_check();
}

#[test]
fn top_shows_the_figures_of_an_interval() {
    let Some(mut cluster) = cluster(Shape::Separate) else { return };
    let data = text(cluster.data()).to_owned();
    let mut command = cluster.command();
    command.args(["top", &data, "--json", "--interval", "1"]).stdout(Stdio::piped());
    let mut top = command.spawn().expect("nacre starts");
    let mut lines = BufReader::new(top.stdout.take().expect("a pipe")).lines();
    let mut round = 0;
    let seen = wait::until(LIMIT, "throughput is seen", || {
        work(&cluster, round);
        round += 1;
        let line = lines.next().expect("a line").expect("UTF-8");
        let view: Value = serde_json::from_str(&line).expect("JSON");
        (view["total"]["write"].as_f64() > Some(0.0)).then_some(view)
    });
    assert_eq!(seen["fsname"], "nacre");
    program::signal(top.id(), Signal::TERM);
    assert!(top.wait().expect("our child").success());
    let once = cluster.nacre(&["top", &data, "--once", "--interval", "1"]).success().stdout;
    for word in ["file system 'nacre'", "MDT0000", "OST0003", "up", text(cluster.mount())] {
        assert!(once.contains(word), "{word} in {once}");
    }
    assert!(!once.contains('\x1b'));
    cluster.stop_and_check();
}

/// Returns a headless browser; its home is a new directory.
fn chromium(run: &Run, name: &str) -> Command {
    let Some(program) = find_program("chromium") else {
        panic!("the test needs the program chromium: scripts/test-deps installs it");
    };
    let mut command = run.command(program);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.args(["--enable-logging=stderr", "--hide-scrollbars"]);
    command.arg(format!("--user-data-dir={}", run.make(name).display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Loads the page in a window of this width for some seconds of the browser's time; `more` says what becomes of
/// it. Returns the output and the messages.
fn look(run: &Run, web: &Web, width: u32, dark: bool, more: &str) -> (String, String) {
    let mut command = chromium(run, &format!("browser-{width}-{dark}-{}", more.len()));
    command.args(["--virtual-time-budget=5000", &format!("--window-size={width},1700"), more]);
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    command.arg(format!("http://127.0.0.1:{}/#token={}", web.port, web.token));
    let child = command.spawn().expect("chromium starts");
    let output = wait::deadline(program::LIMIT, "the browser", move || child.wait_with_output());
    let output = output.expect("our child");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("CONSOLE"), "{said}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), said)
}

#[test]
fn a_browser_shows_the_figures_on_a_phone_and_on_a_screen() {
    let Some(mut cluster) = cluster(Shape::Embedded) else { return };
    let web = Web::start(&cluster);
    let cookie = web.log_in();
    let mut round = 0;
    wait::until(LIMIT, "curves have several points", || {
        work(&cluster, round);
        round += 1;
        let state = web.state(&cookie);
        (state["history"]["write"].as_array().is_some_and(|curve| curve.len() > 3)).then_some(())
    });
    // The first answer is ready at once: it is in memory.
    let start = Instant::now();
    for path in ["/", "/app.js", "/style.css"] {
        assert_eq!(web.ask("GET", path, &[], "").status, 200, "{path}");
    }
    assert!(start.elapsed() < Duration::from_millis(300), "{:?}", start.elapsed());
    for width in WIDTHS {
        for dark in [false, true] {
            let (dom, said) = look(cluster.run(), &web, width, dark, "--dump-dom");
            for shown in ["OST0003", "Throughput of OSTs", "<path d=\"M0.00"] {
                assert!(dom.contains(shown), "{shown} at {width} px in {dom}\n{said}");
            }
            assert!(dom.contains(&format!(">{}</span>", cluster.fsname())), "{dom}");
            let picture = cluster.run().directory().join(format!("page-{width}-{dark}.png"));
            let (_, said) =
                look(cluster.run(), &web, width, dark, &format!("--screenshot={}", picture.display()));
            assert!(fs::metadata(&picture).is_ok_and(|picture| picture.len() > 40_000), "{said}");
            if let Some(directory) = std::env::var_os("NACRE_TEST_PICTURES") {
                let name = picture.file_name().expect("a name");
                fs::copy(&picture, Path::new(&directory).join(name)).expect("copied");
            }
        }
    }
    drop(web);
    cluster.stop_and_check();
}
