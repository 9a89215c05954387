//! An HTTP body on its way to an action: the first line names the operation, the rest is the body.
//! Nothing may panic, and a body that is accepted must be accepted again after a round through JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let accepted = browserd::api::check_any(input).is_ok();
    let Some(at) = input.iter().position(|byte| *byte == b'\n') else { return };
    if let (true, Ok(value)) = (accepted, serde_json_value(&input[at + 1..])) {
        let mut again = input[..=at].to_vec();
        again.extend_from_slice(value.as_bytes());
        assert!(browserd::api::check_any(&again).is_ok(), "accepted once, refused after a round trip");
    }
});

/// The same JSON, written anew.
fn serde_json_value(body: &[u8]) -> Result<String, ()> {
    serde_json::from_slice::<serde_json::Value>(body).map(|value| value.to_string()).map_err(drop)
}
