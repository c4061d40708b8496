use super::*;

const CASE: Case = Case { objects: 2, threads: 3, record: 4096, size: 64 << 10 };

fn store(scratch: &tempfile::TempDir, backend: Backend) -> StoreObjects {
    let mut objects =
        StoreObjects::open(&scratch.path().join("store"), backend, 1 << 30, None).expect("made");
    objects.make(CASE.objects).expect("reserved");
    objects
}

#[test]
fn what_a_store_was_given_is_read_back_by_every_phase() {
    for backend in [Backend::File, Backend::Block] {
        written_is_read_back(backend);
    }
}

fn written_is_read_back(backend: Backend) {
    let scratch = tempfile::tempdir().expect("a directory");
    let objects = store(&scratch, backend);
    for phase in PHASES {
        let rates = pass(&objects, &CASE, phase).expect("done");
        assert!(rates.all > 0.0 && rates.least <= rates.most);
    }
    let trimmed = objects.trim().expect("tells");
    assert_eq!(trimmed.is_some(), backend == Backend::Block, "{trimmed:?}");
    let mut other = [7; 4096];
    stamp(&mut other, 1, 0);
    objects.write(0, 4096, &other).expect("written");
    let wrong = pass(&objects, &CASE, Phase::Read).expect_err("wrong data");
    assert!(wrong.to_string().contains("object 0 has other data at offset 4096"), "{wrong}");
    objects.destroy(0).expect("removed");
    assert!(pass(&objects, &CASE, Phase::Read).expect_err("nothing").to_string().contains("gave 0"));
}

#[test]
fn files_do_the_same_as_objects() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut files = FileObjects::new(scratch.path().join("deep"));
    files.make(CASE.objects).expect("made");
    for phase in PHASES {
        pass(&files, &CASE, phase).expect("done");
    }
    files.destroy(1).expect("emptied");
    assert!(pass(&files, &CASE, Phase::Read).is_err());
}

fn figures() -> Vec<Figure> {
    let figure = |(layer, rate): (Layer, f64)| {
        PHASES.map(|phase| Figure {
            layer,
            objects: CASE.objects,
            threads: CASE.threads,
            record: CASE.record,
            phase,
            samples: [rate].into_iter().collect(),
            least: rate / 4.0,
            most: rate / 2.0,
        })
    };
    let mib = f64::from(1 << 20);
    // 100, 150 and 400 microseconds per MiB.
    [(Layer::Store, mib * 1e4), (Layer::Ost, mib * 1e6 / 150.0), (Layer::Client, mib * 2500.0)]
        .into_iter()
        .flat_map(figure)
        .collect()
}

#[test]
fn a_layer_adds_the_time_that_the_one_below_does_not_take() {
    let scratch = tempfile::tempdir().expect("a directory");
    let objects = || -> Box<dyn Objects> { Box::new(FileObjects::new(scratch.path().join("none"))) };
    let layers: Vec<(Layer, Box<dyn Objects>)> = LAYERS.into_iter().map(|layer| (layer, objects())).collect();
    let text = added(&[CASE], &figures(), &layers);
    assert!(text.contains("| store | + ost | + client |"), "{text}");
    assert!(text.contains("| 2 | 3 | 4K | read | 100 | 50 | 250 |"), "{text}");
    let table = table(&[CASE], &figures());
    assert!(table.contains("| store | 2 | 3 | 4K | 10486 [2621, 5243] |"), "{table}");
    let panels = panels(&[CASE], &figures());
    assert!(panels.iter().all(|panel| panel.lines.len() == 3 && panel.places == ["2/3/4K"]));
}

#[test]
fn records_and_objects_have_to_fit() {
    use clap::Parser;
    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: SurveyArguments,
    }
    let parse = |words: &str| {
        let words = ["survey", "--dir", "/tmp"].into_iter().chain(words.split_whitespace());
        Program::try_parse_from(words).map(|program| program.arguments).map_err(|error| error.to_string())
    };
    for wrong in
        ["--record 1000", "--record 32M", "--threads 0", "--objects 9999", "--for 1m", "--layer disk"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    let uneven = parse("--size 1M --record 12k").expect("each for itself");
    assert!(cases(&uneven).expect_err("no whole number").to_string().contains("no whole number"));
    let all = parse("--objects 1,2 --threads 1,2,4 --record 64k,1M").expect("well");
    assert_eq!(cases(&all).expect("all fit").len(), 12);
    assert_eq!((shown(65_536), shown(1 << 20)), ("64K".to_owned(), "1M".to_owned()));
}

#[test]
fn a_survey_takes_the_time_of_the_medium_and_says_that_it_is_simulated() {
    use clap::Parser;
    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: SurveyArguments,
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let run = |backend: &str, medium: &str| {
        let dir = format!("--dir={}", scratch.path().display());
        let words = format!(
            "--layer store --backend {backend} --objects 1 --threads 1 --record 64k --size 256k --runs 1 --simulated-medium {medium}"
        );
        let words = ["survey", &dir].into_iter().chain(words.split_whitespace());
        let arguments = Program::try_parse_from(words).map(|program| program.arguments).expect("well");
        measure(&arguments, &Myself::new().expect("this program"))
    };
    // Four transfers of 50 ms: 1.31 MB/s at most.
    for (backend, medium) in [("block", "throttle:latency=50ms"), ("file", "seek=0ms:bandwidth=1280K")] {
        let report = run(backend, medium).expect("measured");
        assert!(report.title.contains("simulated"), "{}", report.title);
        assert!(report.notes[0].starts_with("SIMULATED"), "{}", report.notes[0]);
        assert!(report.rows.iter().all(|row| row.samples.median() <= 1.32e6), "{:?}", report.rows);
    }
    let refused = run("file", "disk").expect_err("no device").to_string();
    assert!(refused.contains("--backend block"), "{refused}");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("there").count(), 0, "all is removed again");
}
