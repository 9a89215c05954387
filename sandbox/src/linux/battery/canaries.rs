//! The canaries outside that the battery tries to reach. Dropping them removes them.

use super::Options;
use crate::linux::doing;
use crate::linux::ipc::{MessageQueue, Segment};
use crate::{Error, FileRule, HOST_FOLDER, Layer, Policy};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use sandbox_inside::findings::Canaries;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) struct Outside {
    token: String,
    folder: Folder,
    inside_folder: PathBuf,
    shared_memory: RemovedFile,
    segment: Segment,
    queue: Option<MessageQueue>,
    abstract_name: String,
    tcp: Vec<TcpListener>,
    udp: Vec<Echo>,
    root_only: Option<PathBuf>,
    setuid_program: Option<PathBuf>,
    // Only kept open.
    _sockets: [UnixListener; 2],
    _inheritable: OwnedFd,
}

impl Outside {
    pub(super) fn set_up(
        policy: &Policy,
        options: &Options,
        inside_folder: PathBuf,
    ) -> Result<Outside, Error> {
        let token = token();
        let folder = Folder::make(&token)?;
        write_for_all(&folder.0.join("secret"), &token)?;
        let socket_path = folder.0.join("socket");
        let path_socket = UnixListener::bind(&socket_path).map_err(doing("make a socket"))?;
        open_for_all(&socket_path, 0o777)?;
        let abstract_name = format!("{token}-abstract");
        let abstract_socket = UnixAddr::from_abstract_name(&abstract_name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(doing("make an abstract socket"))?;
        let shared_memory = RemovedFile(Path::new("/dev/shm").join(&token));
        write_for_all(&shared_memory.0, &token)?;
        let segment = Segment::make().map_err(doing("make a System V memory segment"))?;
        // Some kernels have no message queues.
        let queue = MessageQueue::make(&token).ok();
        let (root_only, setuid_program) = prepare_writable(&folder, policy, &token)?;
        // Addresses that this network namespace lacks are skipped.
        let tcp =
            options.addresses.iter().filter_map(|address| TcpListener::bind((*address, 0)).ok()).collect();
        let udp = options
            .addresses
            .iter()
            .filter_map(|address| Echo::start(SocketAddr::new(*address, 0), &token).ok())
            .collect();
        Ok(Outside {
            _inheritable: inheritable(&token)?,
            token,
            folder,
            inside_folder,
            shared_memory,
            segment,
            queue,
            abstract_name,
            tcp,
            udp,
            root_only,
            setuid_program,
            _sockets: [path_socket, abstract_socket],
        })
    }

    pub(super) fn writable_folder(&self) -> PathBuf {
        self.folder.0.join("writable")
    }

    pub(super) fn describe(&self, policy: &Policy, limits_kept: bool) -> Canaries {
        let inside =
            |path: &PathBuf| path.file_name().map(|name| self.inside_folder.join(name)).unwrap_or_default();
        let pid = nix::unistd::getpid().as_raw();
        Canaries {
            token: self.token.clone(),
            secret_file: self.folder.0.join("secret"),
            path_socket: self.folder.0.join("socket"),
            abstract_socket: self.abstract_name.clone(),
            shared_memory: self.shared_memory.0.clone(),
            system_v_key: self.segment.key(),
            message_queue: self.queue.as_ref().map(MessageQueue::name),
            tcp: self.tcp.iter().filter_map(|l| l.local_addr().ok()).collect(),
            udp: self.udp.iter().map(|echo| echo.address).collect(),
            launcher: (pid, start_time().unwrap_or_default()),
            host_name: nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .unwrap_or_default(),
            namespaces: namespaces(),
            environment: policy.environment.keys().cloned().collect(),
            writable: self.inside_folder.clone(),
            root_only: self.root_only.as_ref().map(inside),
            setuid_program: self.setuid_program.as_ref().map(inside),
            host_folder: HOST_FOLDER.into(),
            nested_namespaces: policy
                .syscalls
                .nested_namespaces
                .iter()
                .map(|(kind, most)| (kind.to_string(), *most))
                .collect(),
            temporary: policy.files.iter().find_map(FileRule::inodes),
            open_files: policy.limits.open_files,
            memory_bytes: policy.limits.memory_bytes.filter(|_| limits_kept),
            processes: policy.limits.processes.filter(|_| limits_kept),
        }
    }
}

/// A unique name that cannot be guessed.
fn token() -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(std::process::id());
    format!("canary-{}-{random:016x}", std::process::id())
}

/// A folder that is removed with its content when dropped.
struct Folder(PathBuf);

impl Folder {
    fn make(token: &str) -> Result<Folder, Error> {
        let path = std::env::temp_dir().join(token);
        fs::create_dir(&path).map_err(doing(format!("make {}", path.display())))?;
        let folder = Folder(path);
        open_for_all(&folder.0, 0o755)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn write_for_all(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(doing(format!("write {}", path.display())))?;
    open_for_all(path, 0o644)
}

fn open_for_all(path: &Path, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(doing(format!("set the mode of {}", path.display())))
}

/// Creates the writable folder and, as root, a root-only file and a setuid program in it. The folder
/// has mode 0700 and belongs to the sandbox's user, so no other user can reach the setuid program.
fn prepare_writable(
    folder: &Folder,
    policy: &Policy,
    token: &str,
) -> Result<(Option<PathBuf>, Option<PathBuf>), Error> {
    let path = folder.0.join("writable");
    fs::create_dir(&path).map_err(doing(format!("make {}", path.display())))?;
    open_for_all(&path, 0o700)?;
    if !nix::unistd::geteuid().is_root() {
        return Ok((None, None));
    }
    let root_only = path.join("root-only");
    fs::write(&root_only, token).map_err(doing("write the root-only file"))?;
    open_for_all(&root_only, 0o600)?;
    let setuid = path.join("setuid-program");
    fs::write(&setuid, crate::linux::embedded::PROBE).map_err(doing("write the setuid program"))?;
    open_for_all(&setuid, 0o4755)?;
    let private = policy.identity.host_uid.filter(|_| policy.layers.wanted(Layer::Identity));
    if let Some(uid) = private {
        chown(&path, Some(uid), Some(uid)).map_err(doing("give the folder to the private uid"))?;
    }
    Ok((Some(root_only), Some(setuid)))
}

/// An open file without close-on-exec, which every child inherits.
fn inheritable(token: &str) -> Result<OwnedFd, Error> {
    let file = crate::linux::embedded::data("inheritable", token.as_bytes())?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(|e| doing("make a descriptor inheritable")(e.into()))?;
    Ok(file)
}

fn namespaces() -> BTreeMap<String, u64> {
    ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"]
        .into_iter()
        .filter_map(|kind| {
            let metadata = fs::metadata(format!("/proc/thread-self/ns/{kind}")).ok()?;
            Some((kind.to_owned(), metadata.ino()))
        })
        .collect()
}

/// When this process started (field 22 of its `stat`).
fn start_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Answers every datagram with the token.
struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    fn start(address: SocketAddr, token: &str) -> std::io::Result<Echo> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let address = socket.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (token, stopped) = (token.to_owned(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(token.as_bytes(), from);
                }
            }
        });
        Ok(Echo { address, stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
