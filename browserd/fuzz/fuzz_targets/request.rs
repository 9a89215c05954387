//! Validates an HTTP body: the first line is the operation's id, the rest is the body.
//! Nothing may panic, and an accepted body must still be accepted after it is parsed and written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let accepted = browserd::api::check_any(input).is_ok();
    let Some(at) = input.iter().position(|byte| *byte == b'\n') else { return };
    if let (true, Ok(value)) = (accepted, rewritten(&input[at + 1..])) {
        let mut again = input[..=at].to_vec();
        again.extend_from_slice(value.as_bytes());
        assert!(browserd::api::check_any(&again).is_ok(), "the rewritten body was refused");
    }
});

/// The same JSON, parsed and written again.
fn rewritten(body: &[u8]) -> Result<String, ()> {
    serde_json::from_slice::<serde_json::Value>(body).map(|value| value.to_string()).map_err(drop)
}
