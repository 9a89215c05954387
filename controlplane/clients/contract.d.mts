// Generated from docs/controlplane-openapi.json; do not edit.
// UPDATE_DOCS=1 cargo test -p controlplane --test surfaces documents

/** An error. */
export type ErrorDetail = {
  /** The code, for programs. */
  code: string;
  /** What happened, for people. */
  message: string;
  /** What to do about it. */
  hint: string;
  /** Whether the same call may succeed later. */
  retryable: boolean;
  /** How long to wait before a retry. */
  retry_after_seconds?: number | null;
};

/** The body of an error. */
export type ErrorBody = {
  /** Always false. */
  success: boolean;
  /** The error. */
  error: ErrorDetail;
};

/** Whether a session has a person's logins. */
export type CredentialMode = "clean" | "operator";

/** What of a session is recorded. */
export type Record = "off" | "transient" | "audit";

/** Open a session: a browser of its own, with its own files, address and limits. */
export type OpenSession = {
  /** Whether the session has a person's logins. */
  credential_mode?: CredentialMode;
  /** The host names whose logins are used; only with `credential_mode: operator`. */
  domains?: Array<string>;
  /** What is recorded; fixed for the session. */
  record?: Record;
  /** The session's lifetime in seconds. */
  deadline_seconds?: number | null;
  /** The session is closed when it was not used for so many seconds. */
  idle_seconds?: number | null;
  /** Texts for the caller's own use, shown in lists. */
  labels?: Record<string, string>;
};

/** A session. It is unguessable, and also the `request_id` of the session's clone at hostd. */
export type SessionId = string;

/** Where a session is in its life. */
export type SessionState = "opening" | "open" | "closing" | "closed";

/** The owner of sessions, keys, recordings and audit rows. Tenants do not see each other. */
export type TenantId = string;

/** A session as its owner sees it. */
export type SessionView = {
  /** The session. It is a secret of its owner: whoever knows it still needs the owner's credential. */
  session_id: SessionId;
  /** Where it is in its life. */
  state: SessionState;
  /** Its tenant. */
  tenant: TenantId;
  /** Who opened it. */
  owner: string;
  /** Whether it has a person's logins. */
  credential_mode: CredentialMode;
  /** The host names whose logins it has. */
  domains: Array<string>;
  /** What is recorded. */
  record: Record;
  /** Texts of the caller. */
  labels: Record<string, string>;
  /** When it was asked for (RFC 3339). */
  created_at: string;
  /** When it could be used first (RFC 3339). */
  started_at?: string | null;
  /** When it ends at the latest (RFC 3339). */
  deadline_at: string;
  /** The idle time after which it is closed, in seconds. */
  idle_seconds: number;
  /** When it was last used (RFC 3339). */
  used_at: string;
  /** When it ended (RFC 3339). */
  closed_at?: string | null;
  /** Why it ended. */
  close_reason?: string | null;
};

/** Sessions, the newest first. */
export type SessionList = {
  /** The sessions. */
  sessions: Array<SessionView>;
};

/** A session that has ended. */
export type ClosedSession = {
  /** When it ended (RFC 3339). */
  closed_at: string;
  /** Why it ended; `requested` unless something else was first. */
  close_reason: string;
};

/** A step through the tab's history. */
export type History = "back" | "forward" | "reload";

/** The state of loading to wait for. */
export type WaitUntil = "commit" | "domcontentloaded" | "load" | "networkidle";

/** Load a URL, or navigate the tab's history. */
export type Navigate = {
  /** An http, https, about or data URL. */
  url?: string | null;
  /** A step through the history, instead of a URL. */
  history?: History | null;
  /** The state of loading at which the call returns. */
  wait_until?: WaitUntil;
  /** The Referer header. */
  referrer?: string | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A screenshot. */
export type Picture = {
  /** The file's bytes. */
  image_base64: string;
  /** The file format. */
  format: ImageFormat;
  /** Width in image pixels. */
  width: number;
  /** Height in image pixels. */
  height: number;
  /** Milliseconds since 1970. */
  captured_at: number;
  /** The file on the control plane's disk, if the session is recorded. */
  persisted_path?: string;
};

/** Image formats. */
export type ImageFormat = "png" | "jpeg" | "webp";

/** The result of a navigation. */
export type Navigated = {
  /** Always true. */
  success: boolean;
  /** HTTP status of the document; absent if there is none (about:, a download). */
  status?: number | null;
  /** The URL after redirects. */
  final_url: string;
  /** The document's title. */
  title: string;
  /** The tab's id. */
  tab: string;
  /** Whether the URL was a download; see `downloads`. */
  download: boolean;
  /** The download's id, if Chromium reported it in time. */
  download_guid?: string | null;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Go back in the tab's history. */
export type Back = {
  /** The state of loading at which the call returns. */
  wait_until?: WaitUntil;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Go forward in the tab's history. */
export type Forward = {
  /** The state of loading at which the call returns. */
  wait_until?: WaitUntil;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Load the page again. */
export type Reload = {
  /** The state of loading at which the call returns. */
  wait_until?: WaitUntil;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Wait until all given conditions hold at the same time. */
export type WaitFor = {
  /** A visible element matches this CSS selector. */
  selector?: string | null;
  /** The element of this ref is visible. */
  ref?: string | null;
  /** The page's visible text contains this. */
  text?: string | null;
  /** The tab's URL contains this, or matches all of it if it contains `*`, which stands for any characters. */
  url?: string | null;
  /** The document has reached this state of loading. */
  load?: WaitUntil | null;
  /** Wait until the element or the text is not visible any more. The other conditions are not reversed. */
  gone?: boolean;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The conditions of `wait_for` hold. */
export type Waited = {
  /** Always true. */
  success: boolean;
  /** The tab's URL. */
  url: string;
  /** How long the call waited. */
  waited_ms: number;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Read the accessibility tree, with refs for actions. An element keeps its ref as long as its document exists. */
export type Snapshot = {
  /** Only interactive elements. */
  interactive_only?: boolean;
  /** Only this element and what is below it. */
  ref?: string | null;
  /** Maximum number of levels; deeper parts are marked with `[more]`. */
  depth?: number | null;
  /** Maximum number of characters (default 100000). */
  max_chars?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** An interactive element. */
export type RefInfo = {
  /** Its role. */
  role: string;
  /** Its accessible name. */
  name: string;
};

/** The page's accessibility tree. */
export type PageSnapshot = {
  /** One element per line, indented: `- button "Save" [ref=@e1]`. */
  snapshot: string;
  /** The elements by ref. */
  refs: Record<string, RefInfo>;
  /** Present if the result is truncated: the number of characters returned. */
  truncated_to?: number | null;
};

/** A rectangle in CSS pixels. */
export type Clip = {
  x: number;
  y: number;
  width: number;
  height: number;
};

/** Take a screenshot of the tab. */
export type Screenshot = {
  /** Capture the whole page instead of the viewport. */
  full_page?: boolean;
  /** The image format. */
  format?: ImageFormat;
  /** 0 to 100, for JPEG and WebP. */
  quality?: number | null;
  /** The part of the page to capture, in CSS pixels from the page's top left corner. */
  clip?: Clip | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A screenshot. */
export type ScreenshotResult = {
  /** The file's bytes. */
  image_base64: string;
  /** The file format. */
  format: ImageFormat;
  /** Width in image pixels. */
  width: number;
  /** Height in image pixels. */
  height: number;
  /** Milliseconds since 1970. */
  captured_at: number;
  /** The file on the control plane's disk, if the session is recorded. */
  persisted_path?: string | null;
};

/** Read the page as HTML, including open shadow roots and same-origin frames. */
export type ReadDom = {
  /** Only this element. */
  selector?: string | null;
  /** Maximum number of characters (default 100000). */
  max_chars?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The page as HTML. */
export type Dom = {
  /** The HTML. */
  html: string;
  /** Present if the result is truncated: the number of characters returned. */
  truncated_to?: number | null;
};

/** Read the page as HTML, including open shadow roots and same-origin frames. */
export type Html = {
  /** Only this element. */
  selector?: string | null;
  /** Maximum number of characters (default 100000). */
  max_chars?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Read the page's visible text. */
export type Text = {
  /** Only this element. */
  selector?: string | null;
  /** Maximum number of characters (default 100000). */
  max_chars?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The page's text. */
export type PageText = {
  /** The text. */
  text: string;
  /** Present if the result is truncated: the number of characters returned. */
  truncated_to?: number | null;
};

/** List the links of the page. */
export type Links = {
  /** Only links inside this element. */
  selector?: string | null;
  /** Maximum number of links (default 1000). */
  max?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** One link. */
export type Link = {
  /** The absolute URL. */
  url: string;
  /** Its text. */
  text: string;
};

/** The page's links. */
export type PageLinks = {
  /** The links, in document order. */
  links: Array<Link>;
  /** Present if the list is truncated: the number of links returned. */
  truncated_to?: number | null;
};

/** Find elements by what a person sees. All given conditions must match. Elements in cross-site frames are found too. */
export type Find = {
  /** Text that the element's accessible name or value contains, in any case. */
  text?: string | null;
  /** The element's role, for example `button`, `link`, `textbox`, `heading`. */
  role?: string | null;
  /** Text that the placeholder contains, in any case. */
  placeholder?: string | null;
  /** The texts must be equal, also in case. */
  exact?: boolean;
  /** Maximum number of elements (default 20, at most 200). */
  max?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** An element that `find` found. */
export type FoundElement = {
  /** Its ref for actions. */
  ref: string;
  /** Its role. */
  role: string;
  /** Its accessible name, or its text. */
  name: string;
  /** Its value. */
  value?: string | null;
};

/** The elements that `find` found. */
export type Found = {
  /** The elements, in the order of the page. */
  elements: Array<FoundElement>;
  /** Present if the list is truncated: the number of elements returned. */
  truncated_to?: number | null;
};

/** Read the tab's address, title and whether it is loading. */
export type Url = {
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Where a tab is. */
export type PageUrl = {
  /** The tab's id. */
  tab: string;
  /** The URL after redirects. */
  url: string;
  /** The document's title. */
  title: string;
  /** Whether a document is being loaded. */
  loading: boolean;
};

/** Print the tab to PDF. */
export type Pdf = {
  /** Landscape orientation. */
  landscape?: boolean;
  /** Print background colours and images. */
  background?: boolean;
  /** Paper width in inches (default 8.5). */
  paper_width?: number | null;
  /** Paper height in inches (default 11). */
  paper_height?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A page as PDF. */
export type PdfFile = {
  /** The file's bytes. */
  pdf_base64: string;
};

/** Levels of console messages, from the least to the most important. */
export type ConsoleLevel = "debug" | "info" | "warning" | "error";

/** Read the messages of the tab's console and its uncaught exceptions. browserd records them from the tab's first call on. */
export type Console = {
  /** Only entries after this sequence number (`last` of an earlier answer). */
  since?: number | null;
  /** Only messages of at least this level. */
  level?: ConsoleLevel | null;
  /** Maximum number of messages; the latest are returned (default 100). */
  max?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** One message of the console, or an uncaught exception. */
export type ConsoleMessage = {
  /** Its sequence number in the tab. */
  seq: number;
  /** Its level. */
  level: ConsoleLevel;
  /** `console` (the page's script), `exception` (an uncaught one), or Chromium's source, for example `network`, `security`. */
  source: string;
  /** Its text, truncated to 2000 characters. */
  text: string;
  /** The script or document that caused it, truncated to 1000 characters. */
  url?: string | null;
  /** The line in it, from 1. */
  line?: number | null;
  /** Milliseconds since 1970. */
  at: number;
};

/** The messages of a tab's console. */
export type ConsoleLog = {
  /** The messages, the earliest first. */
  messages: Array<ConsoleMessage>;
  /** The sequence number of the tab's last message; `since` of the next call. */
  last: number;
  /** Messages after `since` that are not kept any more. */
  missed: number;
};

/** Read the tab's network requests, without headers and bodies. browserd records them from the tab's first call on. */
export type Network = {
  /** Only entries that changed after this sequence number (`last` of an earlier answer). */
  since?: number | null;
  /** Only requests whose URL contains this. */
  url?: string | null;
  /** Only requests that failed or were answered with a status of 400 or above. */
  failed_only?: boolean;
  /** Maximum number of requests; the latest are returned (default 100). */
  max?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** One network request. Headers and bodies are never recorded. */
export type NetworkRequest = {
  /** The sequence number of its last change: its start, its response, its end. */
  seq: number;
  /** The HTTP method. */
  method: string;
  /** The URL without user and password, truncated to 1000 characters. */
  url: string;
  /** What it is for: `Document`, `Script`, `Image`, `Fetch`, `XHR`, `WebSocket`, … */
  type: string;
  /** Its state. */
  state: NetworkState;
  /** The HTTP status. */
  status?: number | null;
  /** The media type of the response. */
  mime_type?: string | null;
  /** Bytes received over the network, with headers. */
  size?: number | null;
  /** Whether the response came from a cache. */
  from_cache?: boolean;
  /** Milliseconds since 1970. */
  started_at: number;
  /** From the start to the end, in milliseconds. */
  duration_ms?: number | null;
  /** Why it failed, for example `net::ERR_NAME_NOT_RESOLVED`. */
  failure?: string | null;
};

/** The state of a network request. */
export type NetworkState = "pending" | "finished" | "failed" | "redirected";

/** A tab's network requests. */
export type NetworkLog = {
  /** The requests, in the order of their last changes. */
  requests: Array<NetworkRequest>;
  /** The sequence number of the tab's last change; `since` of the next call. */
  last: number;
  /** Requests that are not kept any more. */
  missed: number;
};

/** Mouse buttons. */
export type Button = "left" | "middle" | "right";

/** Keys that change the meaning of a click. */
export type Modifier = "alt" | "control" | "meta" | "shift";

/** Click a point, or the centre of an element. Give x and y, or a selector, or a ref. */
export type Click = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** The mouse button. */
  button?: Button;
  /** Number of clicks; 2 for a double click. */
  count?: number | null;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A position in CSS pixels. */
export type Point = {
  x: number;
  y: number;
};

/** The result of an action. */
export type Acted = {
  /** Always true. */
  success: boolean;
  /** The position in the viewport, for actions that have one. */
  point?: Point | null;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Move the pointer over a point, or over the centre of an element. Give x and y, or a selector, or a ref. */
export type Hover = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A place in the page. Give x and y, or a selector, or a ref. */
export type Place = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
};

/** Drag with the mouse: press at `from`, move along `path` to `to`, release. Also drags elements that are `draggable`. */
export type Drag = {
  /** Where the drag starts. */
  from?: Place;
  /** Where it ends. */
  to?: Place;
  /** Points in between, in order. */
  path?: Array<Point>;
  /** The mouse button. */
  button?: Button;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Move the mouse to a point or an element. */
export type MouseMove = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Press a mouse button, where the pointer is or at a point. It stays down until `mouse_up`. */
export type MouseDown = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** The mouse button. */
  button?: Button;
  /** Number of the click in a series; 2 for the second one of a double click. */
  count?: number | null;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Release a mouse button, where the pointer is or at a point. */
export type MouseUp = {
  /** CSS pixels from the left of the viewport. */
  x?: number | null;
  /** CSS pixels from the top of the viewport. */
  y?: number | null;
  /** The mouse button. */
  button?: Button;
  /** Number of the click in a series; 2 for the second one of a double click. */
  count?: number | null;
  /** Keys that are held meanwhile. */
  modifiers?: Array<Modifier>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Scroll with the mouse wheel, or scroll an element into view. */
export type Scroll = {
  /** Distance to the right in CSS pixels. */
  dx?: number;
  /** Distance down in CSS pixels. */
  dy?: number;
  /** The pointer's position; defaults to the centre of the viewport. */
  x?: number | null;
  /** The pointer's position. */
  y?: number | null;
  /** CSS selector of an element to scroll into view; the pointer is placed over it. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, instead of the selector. */
  ref?: string | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The result of scrolling. */
export type Scrolled = {
  /** Always true. */
  success: boolean;
  /** The scroll position: the viewport's top left corner on the page. */
  position: Point;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Type text into the focused element, or into the element of the selector or ref. */
export type Type = {
  /** The text. */
  text?: string;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** Replace the present text. */
  clear?: boolean;
  /** Press Enter afterwards. */
  submit?: boolean;
  /** Send key events for every character instead of inserting the text at once. */
  keys?: boolean;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Replace the text of a field. Give a selector or a ref. */
export type Fill = {
  /** The text. */
  text?: string;
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** Press Enter afterwards. */
  submit?: boolean;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Press a key or a key combination. */
export type Press = {
  /** The key, for example `Enter`, `ArrowDown`, `a`, `Control+A`, `Shift+Tab`. */
  key?: string;
  /** How often to press it, 1 to 1000 (default 1). */
  repeat?: number | null;
  /** How long to hold it in milliseconds, at most 60000. The key repeats as on a keyboard. */
  hold_ms?: number | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Choose options of a select. Give a selector or a ref. */
export type Select = {
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** The options, each by its value or its label. An empty list deselects all of a multiple select. */
  values?: Array<string>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The state of a form control after `set_value`. */
export type ValueSet = {
  /** Always true. */
  success: boolean;
  /** The control's value. */
  value: string;
  /** The values of the chosen options of a select. */
  values?: Array<string> | null;
  /** The state of a checkbox or radio button. */
  checked?: boolean | null;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Set the value of a form control: the chosen options of a select, the state of a checkbox or radio button, or the value of an input or textarea, also of kinds into which nobody types (date, colour, range). Give `value`, `values` or `checked`. */
export type SetValue = {
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** The value. For a select, the value or the label of an option. */
  value?: string | null;
  /** The options of a select, each by its value or its label. An empty list deselects all of a multiple select. */
  values?: Array<string> | null;
  /** The state of a checkbox or radio button. */
  checked?: boolean | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Evaluate a JavaScript expression in the page. Promises are awaited. */
export type Evaluate = {
  /** The expression. */
  expression?: string;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** The result of an expression. */
export type Evaluated = {
  /** Always true. */
  success: boolean;
  /** The value as JSON; null for undefined and for values that JSON cannot represent. */
  value: unknown;
  /** JavaScript's `typeof`. */
  type: string;
  /** The requested screenshot. */
  after_screenshot?: Picture | null;
};

/** Open a tab. */
export type NewTab = {
  /** The URL to load; defaults to an empty page. The call does not wait until it is loaded. */
  url?: string | null;
  /** Do not activate the new tab. */
  background?: boolean;
};

/** A dialog that was answered. */
export type DialogInfo = {
  /** `alert`, `confirm`, `prompt` or `beforeunload`. */
  kind: string;
  /** Its text, truncated to 1000 characters. */
  message: string;
  /** Whether it was accepted. */
  accepted: boolean;
};

/** An open tab. */
export type TabInfo = {
  /** The tab's id, for example `t1`. */
  tab: string;
  /** Its URL. */
  url: string;
  /** Its title. */
  title: string;
  /** Whether this is the default for calls that name no tab. */
  active: boolean;
  /** The tab that opened it. */
  opener?: string | null;
  /** Whether its renderer crashed. Navigate the tab again or close it. */
  crashed: boolean;
  /** Number of dialogs its pages opened. */
  dialogs: number;
  /** The last dialog. */
  last_dialog?: DialogInfo | null;
  /** The target id in raw CDP. */
  target_id: string;
};

/** No parameters. */
export type Nothing = Record<string, never>;

/** All open tabs. */
export type Tabs = {
  /** The tabs, in the order they were opened. */
  tabs: Array<TabInfo>;
  /** Number of the browser's profile, see `health`. */
  browser_generation?: number;
};

/** A tab. */
export type OneTab = {
  /** The tab, for example `t1`. */
  tab: string;
};

/** The call succeeded. */
export type Done = {
  /** Always true. */
  success: boolean;
};

/** Set how the tab's dialogs are answered from now on. By default alert and beforeunload dialogs are accepted, confirm and prompt dialogs are dismissed. */
export type Dialogs = {
  /** Accept confirm and prompt dialogs. */
  accept?: boolean;
  /** The text to enter in prompt dialogs. */
  prompt_text?: string | null;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** A dialog that browserd answered. */
export type RecentDialog = {
  /** The tab. */
  tab: string;
  /** Milliseconds since 1970. */
  at: number;
  /** `alert`, `confirm`, `prompt` or `beforeunload`. */
  kind: string;
  /** Its text, truncated to 1000 characters. */
  message: string;
  /** Whether it was accepted. */
  accepted: boolean;
};

/** The dialogs of all tabs. */
export type RecentDialogs = {
  /** The last 100 dialogs that browserd answered, the earliest first. */
  dialogs: Array<RecentDialog>;
};

/** Read what happened in the browser: tabs, downloads, dialogs, starts of the browser. */
export type Events = {
  /** Only events after this sequence number (`last` of an earlier answer). */
  since?: number | null;
  /** Maximum number of events; the earliest are returned (default 100, at most 500). */
  max?: number | null;
  /** If there is none yet, wait for one, at most so many milliseconds. */
  wait_ms?: number | null;
};

/** One event. Fields that its kind does not have are absent. */
export type BrowserEvent = {
  /** Its sequence number. The numbers continue when the browser is restarted. */
  seq: number;
  /** Milliseconds since 1970. */
  at: number;
  /** What happened. */
  kind: EventKind;
  /** The tab. */
  tab?: string | null;
  /** The tab that opened it, of `tab_opened`. */
  opener?: string | null;
  /** The URL, truncated to 1000 characters. */
  url?: string | null;
  /** The download's id. */
  guid?: string | null;
  /** The file name that the site suggested. */
  suggested_filename?: string | null;
  /** The size of the download. */
  bytes?: number | null;
  /** The dialog. */
  dialog?: DialogInfo | null;
  /** How the browser ended, of `browser_ended`. */
  reason?: string | null;
};

/** Kinds of events. */
export type EventKind = "browser_ready" | "browser_ended" | "tab_opened" | "tab_refused" | "tab_navigated" | "tab_crashed" | "tab_closed" | "download_started" | "download_completed" | "download_canceled" | "dialog";

/** What happened in the browser. */
export type EventList = {
  /** The events, the earliest first. */
  events: Array<BrowserEvent>;
  /** The sequence number of the last event returned, or `since`; `since` of the next call. */
  last: number;
  /** Events after `since` that are not kept any more. */
  missed: number;
  /** Number of the browser's profile, see `health`. */
  browser_generation: number;
};

/** One download. */
export type Download = {
  /** Chromium's id. `GET /v1/downloads/{guid}` returns the file. */
  guid: string;
  /** The tab that started it, if that is open. */
  tab?: string | null;
  /** The source URL. */
  url: string;
  /** The file name that the site suggested. */
  suggested_filename: string;
  /** `in_progress`, `completed` or `canceled`. */
  state: string;
  /** The media type, which follows from the name's ending. */
  mime_type?: string;
  /** Whether the file was removed, by a caller or because it was fetched with `delete=true`. */
  removed?: boolean;
  /** Bytes received so far. */
  received_bytes: number;
  /** Total bytes; 0 while unknown. */
  total_bytes: number;
};

/** All downloads. */
export type Downloads = {
  /** The last 100 downloads, in the order they started. */
  downloads: Array<Download>;
};

/** A download. */
export type GetDownload = {
  /** The download's id from `downloads`. */
  guid: string;
  /** Remove the file from the session when all of it was read. */
  delete?: boolean;
};

/** A file that a page downloaded. */
export type DownloadedFile = {
  /** The download's id. */
  guid: string;
  /** The file name that the site suggested. */
  name: string;
  /** The media type. */
  mime_type: string;
  /** Its size in bytes. */
  bytes: number;
  /** Its content. */
  content_base64: string;
};

/** A download. */
export type OneDownload = {
  /** The download's id from `downloads`. */
  guid: string;
};

/** A file with its content. */
export type NewFile = {
  /** Its name, which the page sees; without folders. */
  name: string;
  /** Its content. */
  content_base64: string;
};

/** Give files to a file input, or to the file chooser that an element opens. Give a selector or a ref. */
export type UploadFiles = {
  /** CSS selector; open shadow roots and same-origin frames are searched too. */
  selector?: string | null;
  /** A ref from `snapshot` or `find`, for example `@e1`. */
  ref?: string | null;
  /** Files with their contents. */
  files?: Array<NewFile>;
  /** Files that were put into the session before, by the id that `POST …/files` returned. */
  file_ids?: Array<string>;
  /** The tab, for example `t1`; defaults to the active tab. */
  tab?: string | null;
  /** Deadline of the call in milliseconds. */
  timeout_ms?: number | null;
  /** Return a screenshot of the viewport taken after the action. */
  after_screenshot?: boolean;
};

/** Put a file into the session, for `upload` and for file inputs. */
export type PutFile = {
  /** Its name, which pages see; without folders. */
  name: string;
  /** Its content. `POST …/files?name=NAME` takes the bytes themselves. */
  content_base64: string;
};

/** A file that a caller put into the clone. */
export type ClientFile = {
  /** Its id. */
  file: string;
  /** Its name, which pages see. */
  name: string;
  /** Its path in the clone, for `upload`, for CDP's `DOM.setFileInputFiles` and for clients that pass a path to it. */
  path: string;
  /** Its size in bytes. */
  bytes: number;
};

/** The files that callers put into the clone. They stay when the browser is restarted. */
export type ClientFiles = {
  /** The files, in the order they arrived. */
  files: Array<ClientFile>;
  /** The sizes of all files together. */
  bytes: number;
  /** The limit of `bytes`. */
  max_bytes: number;
};

/** A file that was put into the session. */
export type OneFile = {
  /** Its id from `files`. */
  file: string;
};

/** A right. An API key and a rule for local users have a set of them. */
export type Scope = "read" | "write" | "evaluate" | "files" | "cdp" | "admin";

/** Who the caller is. */
export type WhoAmI = {
  /** The name in the audit log: `uid:1000` or `key_…`. */
  name: string;
  /** The tenant it acts for. */
  tenant: TenantId;
  /** What it may do. */
  scopes: Array<Scope>;
};

/** The state of the service. */
export type ServiceStatus = {
  /** The version of the program. */
  version: string;
  /** When it was started (RFC 3339). */
  started_at: string;
  /** The database: `sqlite` or `postgres`. */
  store: string;
  /** The sessions by state, and `waiting`: opens in the queue. */
  sessions: Record<string, number>;
  /** Open connections of CDP clients. */
  cdp_connections: number;
  /** The parts that the service needs, each `ok` or what is wrong with it. */
  checks: Record<string, string>;
};

/** An address to ask for. */
export type AskForAddress = {
  /** How long the address is valid (default 3600). */
  expires_in_seconds?: number | null;
};

/** An address. Whoever has it drives the session, until it expires, or its session or key ends. */
export type CdpAddress = {
  /** For clients that take a WebSocket: `ws://…/cdp/…`. */
  cdp_url: string;
  /** For clients that take an HTTP address: `http://…/cdp/…`. */
  http_url: string;
  /** When it expires (RFC 3339). */
  expires_at: string;
};

/** A key to issue. */
export type IssueKey = {
  /** A name for people. */
  label?: string;
  /** What its holder may do; read, write, files and cdp if it is not given. */
  scopes?: Array<Scope> | null;
  /** When it expires, in seconds from now; never if it is not given. */
  expires_in_seconds?: number | null;
  /** The tenant; the caller's own if it is not given. Only root and the service's own user, at the Unix socket, may give another. */
  tenant?: TenantId | null;
};

/** An API key's public name. It may be logged; the key's secret may not. */
export type KeyId = string;

/** A new key. */
export type IssuedKey = {
  /** The secret for the header `Authorization: Bearer`. It is shown once and cannot be had again. */
  key: string;
  /** Its public name. */
  key_id: KeyId;
  /** Its tenant. */
  tenant: TenantId;
  /** A name for people. */
  label: string;
  /** What its holder may do. */
  scopes: Array<Scope>;
  /** Who issued it. */
  issued_by: string;
  /** When it was issued (RFC 3339). */
  issued_at: string;
  /** When it expires (RFC 3339). */
  expires_at?: string | null;
  /** When it was revoked (RFC 3339). */
  revoked_at?: string | null;
  /** When it was last used (RFC 3339), to the minute. */
  used_at?: string | null;
};

/** A key without its secret. */
export type KeyView = {
  /** Its public name. */
  key_id: KeyId;
  /** Its tenant. */
  tenant: TenantId;
  /** A name for people. */
  label: string;
  /** What its holder may do. */
  scopes: Array<Scope>;
  /** Who issued it. */
  issued_by: string;
  /** When it was issued (RFC 3339). */
  issued_at: string;
  /** When it expires (RFC 3339). */
  expires_at?: string | null;
  /** When it was revoked (RFC 3339). */
  revoked_at?: string | null;
  /** When it was last used (RFC 3339), to the minute. */
  used_at?: string | null;
};

/** Keys. */
export type KeyList = {
  /** The keys, also those that expired or were revoked. */
  keys: Array<KeyView>;
};

/** A key that does not work any more. */
export type RevokedKey = {
  /** The key. */
  key_id: KeyId;
  /** Whether it worked before: false if it was revoked already. */
  revoked: boolean;
};

/** A row of the audit log. */
export type AuditView = {
  /** Its number in the whole log. */
  seq: number;
  /** When it happened (RFC 3339). */
  at: string;
  /** What joins the two rows of a call. */
  call: string;
  /** `begin` or `end`. */
  event: string;
  /** Who. */
  actor: string;
  /** The tenant. */
  tenant: string;
  /** The session. */
  session_id?: string | null;
  /** The verb. */
  verb: string;
  /** The redacted parameters; of `begin` rows. */
  params?: unknown;
  /** `ok` or an error code; of `end` rows. */
  outcome?: string | null;
  /** The hash of the row, which covers the row before it too. */
  hash: string;
};

/** Rows of the audit log. */
export type AuditRows = {
  /** The rows. */
  rows: Array<AuditView>;
  /** `after` for the next call. */
  next: number;
};

/** A recording. */
export type RecordingView = {
  /** The session. */
  session_id: SessionId;
  /** Who opened it. */
  owner: string;
  /** The number of pictures. */
  frames: number;
  /** Their sizes together, in bytes. */
  bytes: number;
  /** When the first was taken (RFC 3339). */
  first_at: string;
  /** When the last was taken (RFC 3339). */
  last_at: string;
  /** When it is removed (RFC 3339). None while the session is open. */
  expires_at?: string | null;
};

/** Recordings, the newest first. */
export type RecordingList = {
  /** The recordings. */
  recordings: Array<RecordingView>;
};

/** A picture of a recording. */
export type FrameView = {
  /** Its number in the session, from 1. */
  number: number;
  /** When it was taken (RFC 3339). */
  captured_at: string;
  /** The verb that took it. */
  verb: string;
  /** `png`, `jpeg` or `webp`. */
  format: string;
  /** Width in image pixels. */
  width: number;
  /** Height in image pixels. */
  height: number;
  /** Its size in bytes. */
  bytes: number;
};

/** A recording with its pictures. */
export type RecordingDetail = {
  /** The session. */
  session_id: SessionId;
  /** Who opened it. */
  owner: string;
  /** The number of pictures. */
  frames: number;
  /** Their sizes together, in bytes. */
  bytes: number;
  /** When the first was taken (RFC 3339). */
  first_at: string;
  /** When the last was taken (RFC 3339). */
  last_at: string;
  /** When it is removed (RFC 3339). None while the session is open. */
  expires_at?: string | null;
  /** The pictures, the earliest first. */
  pictures: Array<FrameView>;
};

/** Every operation: its parameters and its result. */
export interface Operations {
  /** Open a session: a browser of its own, with its own files, address and limits */
  open_session: { params: OpenSession; result: SessionView };
  /** List your sessions, the newest first */
  sessions: { params: { all?: boolean; limit?: number; before?: SessionId }; result: SessionList };
  /** Show a session */
  session: { params: { session_id: string }; result: SessionView };
  /** Close a session and destroy its browser */
  close_session: { params: { session_id: string }; result: ClosedSession };
  /** Load a URL, or navigate the tab's history */
  navigate: { params: Navigate & { session_id: string }; result: Navigated };
  /** Go back in the tab's history */
  back: { params: Back & { session_id: string }; result: Navigated };
  /** Go forward in the tab's history */
  forward: { params: Forward & { session_id: string }; result: Navigated };
  /** Load the page again */
  reload: { params: Reload & { session_id: string }; result: Navigated };
  /** Wait for an element, a text, a URL or a state of loading */
  wait_for: { params: WaitFor & { session_id: string }; result: Waited };
  /** Read the accessibility tree, with refs for actions */
  snapshot: { params: Snapshot & { session_id: string }; result: PageSnapshot };
  /** Take a screenshot of the viewport, the page or a part of it */
  screenshot: { params: Screenshot & { session_id: string }; result: ScreenshotResult };
  /** Read the page as HTML */
  read_dom: { params: ReadDom & { session_id: string }; result: Dom };
  /** Read the page as HTML; the same as read_dom */
  html: { params: Html & { session_id: string }; result: Dom };
  /** Read the page's visible text */
  text: { params: Text & { session_id: string }; result: PageText };
  /** List the page's links */
  links: { params: Links & { session_id: string }; result: PageLinks };
  /** Find elements by text, role or placeholder */
  find: { params: Find & { session_id: string }; result: Found };
  /** Read the tab's URL, title and whether it is loading */
  url: { params: Url & { session_id: string }; result: PageUrl };
  /** Print the page to PDF */
  pdf: { params: Pdf & { session_id: string }; result: PdfFile };
  /** Read the tab's console messages and uncaught exceptions */
  console: { params: Console & { session_id: string }; result: ConsoleLog };
  /** Read the tab's network requests, without headers and bodies */
  network: { params: Network & { session_id: string }; result: NetworkLog };
  /** Click a point or an element */
  click: { params: Click & { session_id: string }; result: Acted };
  /** Move the pointer over a point or an element */
  hover: { params: Hover & { session_id: string }; result: Acted };
  /** Drag from one place to another */
  drag: { params: Drag & { session_id: string }; result: Acted };
  /** Move the mouse to a point or an element */
  mouse_move: { params: MouseMove & { session_id: string }; result: Acted };
  /** Press a mouse button */
  mouse_down: { params: MouseDown & { session_id: string }; result: Acted };
  /** Release a mouse button */
  mouse_up: { params: MouseUp & { session_id: string }; result: Acted };
  /** Scroll by a distance, or to an element */
  scroll: { params: Scroll & { session_id: string }; result: Scrolled };
  /** Type text into the focused element or another one */
  type: { params: Type & { session_id: string }; result: Acted };
  /** Replace the text of a field */
  fill: { params: Fill & { session_id: string }; result: Acted };
  /** Press a key or a key combination */
  press: { params: Press & { session_id: string }; result: Acted };
  /** Choose options of a select */
  select: { params: Select & { session_id: string }; result: ValueSet };
  /** Set the value of a form control: a select, a checkbox, a radio button, a date, a range */
  set_value: { params: SetValue & { session_id: string }; result: ValueSet };
  /** Run JavaScript in the page */
  evaluate: { params: Evaluate & { session_id: string }; result: Evaluated };
  /** Open a tab */
  new_tab: { params: NewTab & { session_id: string }; result: TabInfo };
  /** List the open tabs */
  tabs: { params: Nothing & { session_id: string }; result: Tabs };
  /** Make a tab the one that calls use by default */
  activate_tab: { params: OneTab & { session_id: string }; result: Done };
  /** Close a tab */
  close_tab: { params: OneTab & { session_id: string }; result: Done };
  /** Set how the tab's dialogs are answered from now on */
  dialogs: { params: Dialogs & { session_id: string }; result: Done };
  /** List the last dialogs that pages opened, and how they were answered */
  recent_dialogs: { params: Nothing & { session_id: string }; result: RecentDialogs };
  /** Read what happened in the browser: tabs, downloads, dialogs */
  events: { params: Events & { session_id: string }; result: EventList };
  /** List the downloads */
  downloads: { params: Nothing & { session_id: string }; result: Downloads };
  /** Read the content of a finished download */
  download: { params: GetDownload & { session_id: string }; result: DownloadedFile };
  /** Remove a download's file, or cancel a running download */
  delete_download: { params: OneDownload & { session_id: string }; result: Done };
  /** Give files to a file input, or to the file chooser that an element opens */
  upload: { params: UploadFiles & { session_id: string }; result: Acted };
  /** Put a file into the session, for uploads */
  put_file: { params: PutFile & { session_id: string }; result: ClientFile };
  /** List the files that were put into the session */
  files: { params: { session_id: string }; result: ClientFiles };
  /** Remove a file that was put into the session */
  delete_file: { params: OneFile & { session_id: string }; result: Done };
  /** Show who the caller is and what it may do */
  whoami: { params: {  }; result: WhoAmI };
  /** Show the state of the service */
  status: { params: {  }; result: ServiceStatus };
  /** Make an address for CDP clients that can only take a URL */
  cdp_address: { params: AskForAddress & { session_id: string }; result: CdpAddress };
  /** Issue an API key; the answer is the only one that has its secret */
  issue_key: { params: IssueKey; result: IssuedKey };
  /** List the keys of the tenant, the oldest first */
  keys: { params: { tenant?: TenantId }; result: KeyList };
  /** Revoke a key: its calls, CDP connections and CDP addresses end at once */
  revoke_key: { params: { key_id: string; tenant?: TenantId }; result: RevokedKey };
  /** Read the audit log of the tenant, the oldest rows first */
  audit: { params: { after?: number; session_id?: SessionId; limit?: number; tenant?: TenantId }; result: AuditRows };
  /** Check the hash chain and the signed heads of the whole audit log */
  audit_verify: { params: {  }; result: Record<string, unknown> };
  /** List recordings, the newest first */
  recordings: { params: { limit?: number; before?: SessionId }; result: RecordingList };
  /** List the pictures of a recording */
  recording: { params: { session_id: string }; result: RecordingDetail };
  /** Read a recording as one HTML page with a time line */
  recording_export: { params: { session_id: string }; result: Uint8Array };
  /** Read a picture of a recording */
  recording_picture: { params: { session_id: string; number: number }; result: Uint8Array };
  /** Read the bytes of a finished download */
  download_bytes: { params: { session_id: string; guid: string; delete?: boolean }; result: Uint8Array };
  /** The process serves requests */
  healthz: { params: {  }; result: Record<string, unknown> };
  /** Sessions can be opened */
  readyz: { params: {  }; result: Record<string, unknown> };
  /** Prometheus metrics, for clients on this host */
  metrics: { params: {  }; result: Uint8Array };
  /** This document */
  openapi: { params: {  }; result: Record<string, unknown> };
}
