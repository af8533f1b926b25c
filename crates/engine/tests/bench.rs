//! Measuring passes of a tiny model.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::time::Duration;

use pleach_engine::{
    Bencher, CancelToken, ContextLength, DeviceChoice, Engine, EngineError, EngineOptions, MAX_PASS_ROWS, RowShape,
};
use support::fixture;

fn bencher(model: &str, cancel: &CancelToken) -> Bencher {
    let options = EngineOptions {
        device: DeviceChoice::Reference,
        context: ContextLength::from(40),
        prefill_chunk: 8,
        ..EngineOptions::default()
    };
    Engine::open(&fixture(model), &options).unwrap().bencher(cancel.clone()).unwrap()
}

#[test]
fn every_test_runs_up_to_the_end_of_the_context() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let mut bencher = bencher(model, &CancelToken::new());
        for depth in [0, 20, 0] {
            let more = 40 - depth;
            let times = [
                bencher.prefill(more, depth),
                bencher.decode(more, depth),
                bencher.rows(more, RowShape::Chain, depth, 2),
                bencher.rows(more, RowShape::Tree, depth, 1),
            ];
            for time in times {
                assert!(time.unwrap().unwrap() > Duration::ZERO);
            }
        }
    }
}

#[test]
fn profiles_account_for_ops_and_passes() {
    let mut bencher = bencher("tiny-llama", &CancelToken::new());
    let work = bencher.work();
    let profile = bencher.profile_decode(3, 10).unwrap().unwrap();
    let sum =
        |of: fn(&pleach_engine::PartProfile) -> u64| -> u64 { profile.parts().iter().map(|(_, part)| of(part)).sum() };
    assert_eq!(profile.pass.passes(), 3);
    assert_eq!(sum(|part| part.macs), 3 * (work.macs_per_row + work.macs_per_output));
    assert_eq!(sum(|part| part.weight_bytes), 3 * work.weight_bytes);
    let times: Duration = profile.parts().iter().map(|(_, part)| part.time).sum();
    assert_eq!(times, profile.total);

    let rows = bencher.profile_rows(5, RowShape::Chain, 0, 2).unwrap().unwrap();
    assert_eq!((rows.pass.passes(), rows.sampler, rows.commit), (2, Duration::ZERO, Duration::ZERO));
    let prefill = bencher.profile_prefill(17, 0).unwrap().unwrap();
    assert_eq!(prefill.pass.passes(), 3, "chunks of 8");
}

#[test]
fn a_cancelled_test_gives_nothing() {
    let cancel = CancelToken::new();
    let mut bencher = bencher("tiny-llama", &cancel);
    cancel.cancel();
    assert_eq!(bencher.prefill(4, 0).unwrap(), None);
    assert_eq!(bencher.decode(4, 0).unwrap(), None);
    assert_eq!(bencher.rows(4, RowShape::Chain, 0, 1).unwrap(), None);
    assert_eq!(bencher.prefill(4, 4).unwrap(), None, "the state was not reached either");
    assert_eq!(bencher.profile_decode(4, 0).unwrap(), None);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut bencher = bencher("tiny-llama", &CancelToken::new());
    let allowed = "at least 1 and, with those before them, at most 40, the context";
    let refused = |error: EngineError| error.to_string();
    assert_eq!(refused(bencher.prefill(0, 0).unwrap_err()), format!("`tokens` is 0, but must be {allowed}"));
    assert_eq!(refused(bencher.decode(5, 36).unwrap_err()), format!("`tokens` is 5 after 36, but must be {allowed}"));
    assert_eq!(
        refused(bencher.decode(1, usize::MAX).unwrap_err()),
        format!("`tokens` is 1 after {}, but must be {allowed}", usize::MAX)
    );
    assert!(bencher.rows(MAX_PASS_ROWS + 1, RowShape::Tree, 0, 1).is_err());
}

#[test]
fn only_fast_devices_have_ceilings() {
    let options = |device| EngineOptions { device, ..EngineOptions::default() };
    assert_eq!(options(DeviceChoice::Reference).ceilings().unwrap(), None);
    let ceilings = options(DeviceChoice::Cpu).ceilings().unwrap().unwrap();
    for rate in [ceilings.read_bytes_per_s, ceilings.int8_macs_per_s] {
        assert!(rate.median > 1e6 && rate.best >= rate.median, "{rate:?}");
    }
}
