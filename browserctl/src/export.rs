//! A recording as one HTML page: it needs nothing else, and loads nothing from anywhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Texts of a recording come from pages and callers; the policy also keeps a script that slipped through from running.
const POLICY: &str =
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-SCRIPT'";

const STYLE: &str = "body{margin:0;font:14px system-ui,sans-serif;background:#16181d;color:#e6e6e6;display:flex;flex-direction:column;\
    height:100vh}header,footer{padding:8px 16px;background:#22252c}header b{font-weight:600}main{flex:1;min-height:0;display:flex;\
    align-items:center;justify-content:center}figure{display:none;margin:0;max-width:100%;max-height:100%}figure.now{display:block}\
    img{max-width:100vw;max-height:calc(100vh - 110px);object-fit:contain}footer{display:flex;gap:12px;align-items:center}\
    input{flex:1}output{min-width:28em;font-variant-numeric:tabular-nums}";

const SCRIPT: &str = "\
const frames=[...document.querySelectorAll('figure')],line=document.querySelector('input'),says=document.querySelector('output'),\
play=document.querySelector('button');let timer;\
line.max=frames.length-1;\
const show=n=>{frames.forEach((f,i)=>f.classList.toggle('now',i===n));line.value=n;says.textContent=(n+1)+'/'+frames.length+'  '+frames[n].title;};\
const stop=()=>{clearInterval(timer);timer=undefined;play.textContent='Play';};\
line.addEventListener('input',()=>show(+line.value));\
play.addEventListener('click',()=>{if(timer)return stop();play.textContent='Stop';\
timer=setInterval(()=>{const next=+line.value+1;if(next>=frames.length)return stop();show(next);},700);});\
document.addEventListener('keydown',e=>{const d={ArrowLeft:-1,ArrowRight:1}[e.key];if(d&&e.target!==line)\
show(Math.min(frames.length-1,Math.max(0,+line.value+d)));});\
show(0);";

/// The end of the page.
pub(crate) const TAIL: &str = concat!(
    "</main>\n<footer><button type=\"button\">Play</button><input type=\"range\" min=\"0\" value=\"0\" aria-label=\"time line\">",
    "<output></output></footer>\n"
);

/// The beginning of the page.
pub(crate) fn head(session: &str, frames: &[Value]) -> String {
    let at =
        |frame: Option<&Value>| frame.map_or_else(String::new, |frame| escape(&text(&frame["captured_at"])));
    let policy = POLICY.replace("SCRIPT", &digest());
    let session = escape(session);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<title>Recording of {session}</title>\n\
         <style>{STYLE}</style>\n<script type=\"module\">{SCRIPT}</script>\n\
         <header><b>{session}</b> {} pictures, {} to {}</header>\n<main>\n",
        frames.len(),
        at(frames.first()),
        at(frames.last()),
    )
}

/// The script's digest as the policy names it.
fn digest() -> String {
    use sha2::{Digest, Sha256};
    STANDARD.encode(Sha256::digest(SCRIPT.as_bytes()))
}

/// One picture.
pub(crate) fn frame(frame: &Value, picture: &[u8]) -> String {
    let format = match frame["format"].as_str() {
        Some("jpeg") => "jpeg",
        Some("webp") => "webp",
        _ => "png",
    };
    let title = format!("{}  {}", text(&frame["captured_at"]), text(&frame["verb"]));
    let picture = STANDARD.encode(picture);
    format!(
        "<figure title=\"{}\"><img alt=\"\" loading=\"lazy\" src=\"data:image/{format};base64,{picture}\"></figure>\n",
        escape(title.trim())
    )
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => safe_text::line(text).into_owned(),
        other => other.to_string(),
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_cannot_leave_their_place() {
        let evil = "\"><script>alert(1)</script>";
        let page = head(evil, &[json!({"captured_at": evil})])
            + &frame(&json!({"verb": evil, "format": evil, "captured_at": 1}), b"x");
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains(evil), "{page}");
        assert!(page.contains("data:image/png;base64,eA=="), "{page}");
    }

    #[test]
    fn the_policy_allows_the_script_and_nothing_else() {
        let page = head("ses_1", &[]);
        assert!(page.contains(&format!("script-src 'sha256-{}'", digest())));
        assert!(!SCRIPT.contains("</") && !SCRIPT.contains("<!--"));
    }
}
