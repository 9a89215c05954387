//! The web site for the tests, served on loopback.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A running site. It accepts any host name.
pub struct Site {
    pub address: SocketAddr,
}

impl Site {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if wants_endless(&stream).await {
                        return send_endless(stream).await;
                    }
                    let service = service_fn(|request| async { Ok::<_, Infallible>(page(request).await) });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A URL with a host name; see [`RULE`].
    pub fn url_at(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }
}

/// Makes Chromium resolve every `.test` name to loopback.
pub const RULE: &str = "--chromium-arg=--host-resolver-rules=MAP *.test 127.0.0.1";

async fn wants_endless(stream: &tokio::net::TcpStream) -> bool {
    let mut start = [0; 12];
    loop {
        match stream.peek(&mut start).await {
            Ok(12) => return &start == b"GET /endless",
            Ok(0) | Err(_) => return false,
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// A download that begins and does not end.
async fn send_endless(mut stream: tokio::net::TcpStream) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/zip\r\ncontent-length: 1000000\r\n\r\nPK";
    let _ = stream.write_all(head.as_bytes()).await;
    // Until the browser closes the connection.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

fn html(body: impl Into<String>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.into())));
    response.headers_mut().insert(CONTENT_TYPE, "text/html; charset=utf-8".parse().unwrap());
    response
}

async fn page(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let header =
        |name| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    match path.as_str() {
        "/form" => html(FORM),
        "/submitted" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            html(format!(
                "<title>submitted</title><p id=got>{}</p>",
                String::from_utf8_lossy(&body).replace('&', "&amp;")
            ))
        }
        "/frames" => {
            let port = header("host").rsplit_once(':').unwrap().1.to_owned();
            html(FRAMES.replace("PORT", &port))
        }
        "/inner" => html(
            "<button id=inner onclick=\"document.title='hit';this.textContent='pressed'\">inner</button><input id=field aria-label=field>",
        ),
        // A cross-site frame that contains a frame of a third site.
        "/nested" => {
            let port = header("host").rsplit_once(':').unwrap().1.to_owned();
            html(format!(
                "<p>middle</p><iframe src=\"http://third.test:{port}/inner\" style='margin:25px'></iframe>"
            ))
        }
        "/outer" => {
            let port = header("host").rsplit_once(':').unwrap().1.to_owned();
            html(format!(
                "<p>outer</p><iframe width=600 height=400 src=\"http://other.test:{port}/nested\" style='margin:30px'></iframe>"
            ))
        }
        "/upload" => html(UPLOAD),
        "/pdf" => {
            let mut response =
                html("%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n");
            response.headers_mut().insert(CONTENT_TYPE, "application/pdf".parse().unwrap());
            response
        }
        "/controls" => html(CONTROLS),
        "/dnd" => html(DND),
        "/keys" => html(KEYS),
        "/appear" => html(APPEAR),
        "/noisy" => html(NOISY),
        "/tree" => html(TREE),
        "/secret" => {
            let mut response = html("<title>secret</title>");
            response.headers_mut().append(SET_COOKIE, "planted=canary-cookie; Path=/".parse().unwrap());
            response
        }
        "/shadow" => html(SHADOW),
        "/dialogs" => html(DIALOGS),
        "/beforeunload" => html(BEFOREUNLOAD),
        "/alertloop" => {
            html("<title>loop</title><script>setTimeout(() => { for (;;) alert('again') }, 0)</script>")
        }
        "/busy" => html("<title>busy</title><script>setTimeout(() => { for (;;); }, 0)</script>"),
        "/popup" => html(
            "<title>popup</title><button id=open onclick=\"window.open('/form')\">open</button><a id=blank target=_blank href=/links>blank</a>",
        ),
        "/links" => html(
            "<title>links</title><a href=/form>the form</a> <a href='https://elsewhere.example/x?y=1#z'><b>else</b>where</a><a>no</a>",
        ),
        "/tall" => html(
            "<title>tall</title><body style='margin:0;height:5000px'><div id=low style='position:absolute;top:4000px'>low</div>",
        ),
        "/huge" => html(HUGE),
        "/title" => html(format!("<title>{query}</title><p>page {query}</p>")),
        "/cookies" => html(format!("<title>cookies</title><pre id=sent>{}</pre>", header(COOKIE.as_str()))),
        "/setcookie" => {
            let mut response = html("<title>set</title>");
            response.headers_mut().append(SET_COOKIE, "host=only; Path=/; HttpOnly".parse().unwrap());
            response
                .headers_mut()
                .append(SET_COOKIE, "wide=yes; Path=/; Domain=app.test; Max-Age=3600".parse().unwrap());
            response
        }
        "/redirect" => {
            let mut response = html("");
            *response.status_mut() = StatusCode::FOUND;
            let left: u32 = query.parse().unwrap_or(0);
            let target = if left > 1 { format!("/redirect?{}", left - 1) } else { "/title?end".into() };
            response.headers_mut().insert(LOCATION, target.parse().unwrap());
            response
        }
        "/jsredirect" => html("<script>location.replace('/title?byscript')</script>"),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            html("late")
        }
        // The document is sent at once, one of its images never.
        "/halfslow" => html("<title>half</title><p>here</p><img src=/slow>"),
        "/status" => {
            let mut response = html("<title>status</title>");
            *response.status_mut() = query.parse::<u16>().ok().and_then(|code| code.try_into().ok()).unwrap();
            response
        }
        "/nocontent" => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        "/download" => {
            let mut response = html("the file's content\n".repeat(query.parse().unwrap_or(1)));
            response
                .headers_mut()
                .insert(CONTENT_DISPOSITION, "attachment; filename=report.csv".parse().unwrap());
            response
        }
        _ => {
            let mut response = html("<title>missing</title>");
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

const FORM: &str = r#"<!doctype html><title>form</title>
<h1>A form</h1>
<form method=post action=/submitted>
  <label>Name <input name=name id=name value=old></label>
  <label>Mail <input name=mail id=mail type=email></label>
  <textarea name=notes id=notes></textarea>
  <label><input type=checkbox name=agree id=agree> agree</label>
  <div id=rich contenteditable=true>rich</div>
  <input id=fixed readonly value=fixed>
  <button id=send>Send</button>
</form>
<button id=hidden style="display:none">hidden</button>
<button id=later onclick="log.push('later')" style="position:absolute;top:3000px">later</button>
<script>var log = []; for (const kind of ['keydown', 'keyup', 'input', 'dblclick', 'contextmenu'])
  addEventListener(kind, (e) => log.push(kind + ':' + (e.key || e.data || e.target.id)), true)</script>"#;

/// A same-origin frame, and a cross-site frame, which Chromium runs in its own process.
const FRAMES: &str = r#"<!doctype html><title>frames</title><p>outside</p>
<iframe id=same src="/inner" style="margin:40px;border:3px solid"></iframe>
<iframe id=other src="http://other.test:PORT/inner" style="margin:70px;border:5px solid"></iframe>"#;

const CONTROLS: &str = r#"<!doctype html><title>controls</title>
<label>Colour <select id=colour><option value=r>Red<option value=g>Green  one<option value=b disabled>Blue</select></label>
<select id=many multiple aria-label=many><option>one<option>two<option>three</select>
<input type=checkbox id=box><label for=box id=boxlabel>agree</label>
<input type=radio name=size id=small value=s checked><input type=radio name=size id=large value=l>
<div role=switch id=toggle aria-checked=false aria-label=toggle tabindex=0
  onclick="this.setAttribute('aria-checked', this.getAttribute('aria-checked') !== 'true')">toggle</div>
<div role=checkbox id=stubborn aria-checked=false aria-label=stubborn>stubborn</div>
<input type=date id=date><input type=range id=range min=0 max=10><input type=color id=shade>
<input id=plain placeholder="Your full name"><textarea id=area placeholder="Tell us"></textarea>
<input id=locked readonly value=locked><input type=file id=file><div contenteditable id=rich>x</div>
<script>var log = []; for (const kind of ['input', 'change'])
  addEventListener(kind, (e) => log.push(kind + ':' + e.target.id), true)</script>"#;

const UPLOAD: &str = r#"<!doctype html><title>upload</title>
<input type=file id=one aria-label=one><input type=file id=many multiple aria-label=many>
<label id=label for=hidden>Choose a file</label><input type=file id=hidden style="display:none">
<button id=chooser onclick="document.querySelector('#hidden').click()">Attach</button><button id=nothing>nothing</button>
<input type=file id=off disabled>
<script>var log = [];
  document.querySelectorAll('input').forEach((input) => input.onchange = async () => {
    const files = [...input.files];
    log.push(input.id + ':' + (await Promise.all(files.map(async (file) => file.name + '=' + await file.text()))).join('+'));
  })</script>"#;

/// A page that listens to the mouse, an element that follows it, and an element that is dragged as HTML drag and drop.
const DND: &str = r#"<!doctype html><title>dnd</title><body style="margin:0">
<div id=handle style="position:absolute;left:20px;top:20px;width:40px;height:40px;background:red"></div>
<div id=item draggable=true style="position:absolute;left:20px;top:200px;width:80px;height:40px">item</div>
<div id=stuck draggable=true style="position:absolute;left:20px;top:300px;width:80px;height:40px">stuck</div>
<div id=target style="position:absolute;left:400px;top:200px;width:120px;height:120px">target</div>
<script>
  var log = [], trail = [];
  let grabbed = null;
  handle.onmousedown = (e) => { grabbed = [e.offsetX, e.offsetY]; e.preventDefault(); };
  onmousemove = (e) => {
    trail.push([e.clientX, e.clientY, e.buttons]);
    if (grabbed) { handle.style.left = e.clientX - grabbed[0] + 'px'; handle.style.top = e.clientY - grabbed[1] + 'px'; }
  };
  onmouseup = () => { log.push('mouseup'); grabbed = null; };
  onmousedown = (e) => log.push('mousedown:' + e.button + (e.shiftKey ? ':shift' : ''));
  onclick = (e) => log.push('click' + (e.ctrlKey ? ':ctrl' : '') + (e.shiftKey ? ':shift' : '') + (e.altKey ? ':alt' : ''));
  item.ondragstart = (e) => { e.dataTransfer.setData('text/plain', 'carried'); log.push('dragstart'); };
  stuck.ondragstart = (e) => { e.preventDefault(); log.push('refused'); };
  item.ondragend = () => log.push('dragend');
  target.ondragover = (e) => { e.preventDefault(); if (!log.includes('dragover')) log.push('dragover'); };
  target.ondrop = (e) => { e.preventDefault(); log.push('drop:' + e.dataTransfer.getData('text/plain')); };
</script>"#;

const KEYS: &str = r#"<!doctype html><title>keys</title><input id=field autofocus><script>
  var log = []; for (const kind of ['keydown', 'keyup'])
    addEventListener(kind, (e) => log.push([kind, e.key, e.repeat]), true)</script>"#;

/// Things appear and disappear a moment after the button is pressed.
const APPEAR: &str = r#"<!doctype html><title>appear</title><button id=go>go</button>
<p id=spinner>Loading, please wait</p><div id=result style="display:none">The   result is here</div>
<script>go.onclick = () => setTimeout(() => {
  result.style.display = 'block'; spinner.remove(); history.pushState(null, '', '/appear?step=2');
}, 300)</script>"#;

const NOISY: &str = r#"<!doctype html><title>noisy</title><script>
  console.log('hello', 7, { a: 1, b: 'x' }, [1, 2]);
  console.warn('careful');
  console.debug('detail');
  console.error(new Error('broken'));
  fetch('/status?404');
  fetch('http://closed.test:1/').catch(() => 0);
  setTimeout(() => { throw new TypeError('uncaught one'); });
</script><img src=/nocontent>"#;

const TREE: &str = r#"<!doctype html><title>tree</title><main aria-label=page>
<nav aria-label=menu><a href=/links>first</a><a href=/form>second</a></nav>
<section aria-label=content><h2>Heading</h2><ul><li><button>deep button</button></li></ul></section></main>"#;

const SHADOW: &str = r#"<!doctype html><title>shadow</title><div id=host></div><script>
  const root = host.attachShadow({ mode: 'open' });
  root.innerHTML = '<button id=deep>deep</button><input id=deepfield aria-label=deepfield>';
  root.querySelector('#deep').onclick = () => document.title = 'deep hit';
</script>"#;

const DIALOGS: &str = r#"<!doctype html><title>dialogs</title>
<button id=alert onclick="alert('one'); document.title='after alert'">a</button>
<button id=confirm onclick="document.title='confirm ' + confirm('sure?')">c</button>
<button id=prompt onclick="document.title='prompt ' + prompt('name?', 'nobody')">p</button>"#;

const BEFOREUNLOAD: &str = r#"<!doctype html><title>beforeunload</title><button id=touch>touch</button><script>
  addEventListener('beforeunload', (e) => { e.preventDefault(); e.returnValue = 'stay'; });
</script>"#;

/// The page's script creates about a hundred megabytes of text in many elements.
const HUGE: &str = r#"<!doctype html><title>huge</title><body><script>
  const piece = document.createElement('div');
  for (let i = 0; i < 100; i++) { const p = document.createElement('p'); p.textContent = 'x'.repeat(1000); piece.append(p); }
  for (let i = 0; i < 1000; i++) document.body.append(piece.cloneNode(true));
  document.title = 'huge done';
</script>"#;
