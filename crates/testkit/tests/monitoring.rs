//! The dashboard and the alert rules of `monitoring`, with a real Prometheus.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{find_program, have, have_root};
use nacre_testkit::{Cluster, Shape, binary, http, program, text, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn needed(name: &str) -> std::path::PathBuf {
    find_program(name)
        .unwrap_or_else(|| panic!("the test needs the program {name}: scripts/test-deps installs it"))
}

fn monitoring() -> std::path::PathBuf {
    binary::workspace().join("monitoring")
}

#[test]
fn the_rules_are_valid_and_fire_when_they_should() {
    let rules = monitoring();
    let promtool = needed("promtool");
    program::run(&promtool, ["check", "rules", text(&rules.join("alerts.yml"))]).success();
    program::run(&promtool, ["test", "rules", text(&rules.join("alerts_test.yml"))]).success();
}

/// Returns the title and the expressions of each panel of the dashboard, with its variables filled in.
fn panels() -> Vec<(String, Vec<String>)> {
    let dashboard = fs::read_to_string(monitoring().join("dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let all = dashboard["panels"].as_array().expect("panels");
    let of = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array()?.iter().map(|target| {
            let expression = target["expr"].as_str().expect("an expression");
            expression.replace("$instance", ".*").replace("$__rate_interval", "30s")
        });
        Some((title, targets.collect()))
    };
    all.iter().filter_map(of).collect()
}

/// Returns a URL's form of a query.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Returns the rows of a query's answer.
fn query(port: u16, expression: &str) -> Vec<Value> {
    let reply = http::ask(
        port,
        "GET",
        &format!("/api/v1/query?query={}", encoded(expression)),
        &["Connection: close"],
        "",
    );
    let reply = reply.expect("Prometheus runs");
    let answer: Value =
        serde_json::from_str(reply.body.trim()).unwrap_or_else(|error| panic!("{error}: {}", reply.body));
    assert_eq!(answer["status"], "success", "{expression}: {}", reply.body);
    answer["data"]["result"].as_array().expect("rows").clone()
}

fn work(cluster: &Cluster, mount: &Path, round: usize) {
    let directory = mount.join(format!("d{round}"));
    fs::create_dir(&directory).expect("made");
    cluster.lfs(&["setstripe", "-c", "-1", text(&directory)]).success();
    let file = directory.join("file");
    fs::write(&file, vec![7; 3 << 20]).expect("written");
    fs::File::open(&file).expect("open").sync_all().expect("durable");
    assert_eq!(fs::read(&file).expect("read").len(), 3 << 20);
    fs::rename(&file, directory.join("renamed")).expect("renamed");
    fs::remove_dir_all(&directory).expect("removed");
}

#[test]
fn every_panel_of_the_dashboard_has_data_of_a_running_file_system() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options {
        metrics: true,
        osts: 2,
        mdts: 2,
        ost_backend: vec!["block,size=1G".to_owned()],
        ost_cache_size: Some("64M".to_owned()),
        ..Options::default()
    };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let second = cluster.add_mount();
    cluster.lctl(&["set_param", "jobid_var=procname_uid"]).success();
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 5s}}\nrule_files: [{}]\n\
         scrape_configs: [{{job_name: nacre, static_configs: [{{targets: ['localhost:{}']}}]}}]\n",
        monitoring().join("alerts.yml").display(),
        cluster.metrics_port()
    );
    let directory = cluster.run().make("prometheus");
    fs::write(directory.join("prometheus.yml"), configuration).expect("written");
    let port = cluster.spare_port();
    drop(TcpListener::bind(("127.0.0.1", port)).expect("our port"));
    let mut command = cluster.run().command(needed("prometheus"));
    command.arg(format!("--config.file={}", directory.join("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let log = fs::File::create(directory.join("log")).expect("a log");
    let mut prometheus =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
    let mut missing: Vec<String> = Vec::new();
    let mut round: usize = 0;
    let whole = wait::within(LIMIT * 2, || {
        // The mount of the directory, whose figures are gathered, and one that makes it need locks.
        let mount = if round.is_multiple_of(3) { &second } else { cluster.mount() };
        work(&cluster, mount, round);
        round += 1;
        http::ask(port, "GET", "/-/ready", &[], "").filter(|reply| reply.status == 200)?;
        missing = panels()
            .into_iter()
            .flat_map(|(title, expressions)| expressions.into_iter().map(move |each| (title.clone(), each)))
            .filter(|(_, expression)| query(port, expression).is_empty())
            .map(|(title, expression)| format!("{title}: {expression}"))
            .collect();
        missing.is_empty().then_some(())
    });
    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
    assert!(whole.is_some(), "no data for {missing:#?}\n{log}");
    // Figures, and not only rows.
    let number = |expression: &str| {
        let rows = query(port, expression);
        let value = rows.first().and_then(|row| row["value"][1].as_str()).expect("a row");
        value.parse::<f64>().expect("a number")
    };
    assert_eq!(number("sum(nacre_target_up)"), 5.0);
    assert!(number("sum(nacre_ost_transferred_bytes_total{direction=\"write\"})") >= f64::from(3 << 20));
    assert!(number("count(nacre_key_expires_timestamp_seconds)") >= 5.0, "{log}");
    assert!(query(port, "ALERTS{alertname=\"NacreTargetDown\"}").is_empty());
    prometheus.kill().expect("our child");
    prometheus.wait().expect("our child");
    cluster.stop_and_check();
}
