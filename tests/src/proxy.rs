//! A TCP proxy in front of PostgreSQL that does what networks do: cuts, black holes, delays, and
//! answers to `COMMIT` that never arrive.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use sqlx::{
    ConnectOptions,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinHandle,
};

/// Length of the type byte and of the length field of a message.
const HEADER: usize = 5;

/// A proxy that listens on a port of its own until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    options: PgConnectOptions,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What may happen to a `COMMIT`.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Normal,
    /// The server commits, and the connection breaks before it can say so.
    AnswerLost,
    /// The connection breaks before the server hears of it.
    NeverSent,
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    /// Connections with a lower number are cut.
    cut_below: watch::Sender<u64>,
    /// Connections with a lower number carry nothing any more, but stay open.
    frozen_below: watch::Sender<u64>,
    next: AtomicU64,
    delay: Mutex<Duration>,
    commits: Mutex<Option<(f64, StdRng)>>,
    answers_lost: AtomicU64,
    never_sent: AtomicU64,
    round_trips: AtomicU64,
}

#[derive(Debug)]
enum Upstream {
    Socket(PathBuf),
    Host(String, u16),
}

impl Upstream {
    fn of(options: &PgConnectOptions) -> Self {
        let port = options.get_port();
        match options.get_socket() {
            Some(folder) => Self::Socket(folder.join(format!(".s.PGSQL.{port}"))),
            None => Self::Host(options.get_host().to_owned(), port),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Duplex>> {
        Ok(match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Host(host, port) => Box::new(TcpStream::connect((host.as_str(), *port)).await?),
        })
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Proxy {
    /// Stands between clients and the server that these options lead to.
    ///
    /// # Panics
    /// When there is no port to listen on.
    pub async fn start(options: &PgConnectOptions) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            upstream: Upstream::of(options),
            cut_below: watch::Sender::new(0),
            frozen_below: watch::Sender::new(0),
            next: AtomicU64::new(0),
            delay: Mutex::default(),
            commits: Mutex::default(),
            answers_lost: AtomicU64::new(0),
            never_sent: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            address,
            options: options.clone(),
            shared,
            accepting,
        }
    }

    /// How to connect through the proxy.
    pub fn connect_options(&self) -> PgConnectOptions {
        let options = match self.options.get_socket() {
            // A socket wins over a host, so these options cannot be changed into ours.
            Some(_) => PgConnectOptions::new_without_pgpass()
                .username(self.options.get_username())
                .database(self.options.get_database().unwrap_or("postgres")),
            None => self.options.clone(),
        };
        options
            .host(&self.address.ip().to_string())
            .port(self.address.port())
            .ssl_mode(PgSslMode::Disable)
    }

    /// The same as a URL, to hand to other processes.
    pub fn url(&self) -> String {
        self.connect_options().to_url_lossy().to_string()
    }

    /// A pool that goes through the proxy and waits two seconds for a connection.
    pub fn pool(&self, connections: u32) -> sqlx::PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(2))
            .connect_lazy_with(self.connect_options())
    }

    /// Cuts all connections of this moment.
    pub fn cut(&self) {
        let next = self.shared.next.load(Ordering::SeqCst);
        self.shared.cut_below.send_replace(next);
    }

    /// Lets all connections of this moment carry nothing any more, without closing them.
    pub fn freeze(&self) {
        let next = self.shared.next.load(Ordering::SeqCst);
        self.shared.frozen_below.send_replace(next);
    }

    /// Delays every answer of the server.
    pub fn delay(&self, delay: Duration) {
        *lock(&self.shared.delay) = delay;
    }

    /// Loses this share of all commits: half of them after the server has committed, half before
    /// it hears of it. The client cannot tell one from the other.
    pub fn lose_commits(&self, share: f64, seed: u64) {
        *lock(&self.shared.commits) = Some((share, StdRng::seed_from_u64(seed)));
    }

    /// How often clients have sent something and waited for the answer.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// Commits go through again.
    pub fn keep_commits(&self) {
        *lock(&self.shared.commits) = None;
    }

    /// How many commits were made without an answer, and how many never reached the server.
    pub fn lost_commits(&self) -> (u64, u64) {
        let shared = &self.shared;
        let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
        (load(&shared.answers_lost), load(&shared.never_sent))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.cut_below.send_replace(u64::MAX);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            return;
        };
        let shared = Arc::clone(&shared);
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let mut cut = shared.cut_below.subscribe();
            tokio::select! {
                _ = cut.wait_for(|below| number < *below) => {}
                // An error of either side ends the connection, as a proxy's should.
                _ = pump(client, &shared, number) => {}
            }
        });
    }
}

async fn pump(mut client: TcpStream, shared: &Shared, number: u64) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = shared.upstream.connect().await?;
    let mut frontend = Frontend::default();
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                frontend.buffer.extend_from_slice(&up[..read]);
                while let Some(message) = frontend.message() {
                    shared.thawed(number).await;
                    // A simple query, or the end of an extended one.
                    if matches!(message.first(), Some(b'Q' | b'S')) {
                        shared.round_trips.fetch_add(1, Ordering::SeqCst);
                    }
                    match shared.fate_of(&message) {
                        Fate::Normal => server.write_all(&message).await?,
                        Fate::NeverSent => return Ok(()),
                        Fate::AnswerLost => {
                            server.write_all(&message).await?;
                            return until_ready(&mut server).await;
                        }
                    }
                }
            }
            read = server.read(&mut down) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                let delay = *lock(&shared.delay);
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                shared.thawed(number).await;
                client.write_all(&down[..read]).await?;
            }
        }
    }
}

/// Reads until the server is ready for the next query: the commit is done.
async fn until_ready(server: &mut Box<dyn Duplex>) -> io::Result<()> {
    let mut seen = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        let read = server.read(&mut chunk).await?;
        seen.extend_from_slice(&chunk[..read]);
        let ready = seen.len() > HEADER && seen[seen.len() - 6..][..HEADER] == *b"Z\0\0\0\x05";
        if ready || read == 0 {
            return Ok(());
        }
    }
}

impl Shared {
    /// Waits for ever on a frozen connection.
    async fn thawed(&self, number: u64) {
        if number < *self.frozen_below.borrow() {
            std::future::pending::<()>().await;
        }
    }

    fn fate_of(&self, message: &[u8]) -> Fate {
        let is_commit = message.first() == Some(&b'Q') && message[HEADER..].starts_with(b"COMMIT");
        let mut commits = lock(&self.commits);
        let Some((share, random)) = commits.as_mut().filter(|_| is_commit) else {
            return Fate::Normal;
        };
        if !random.random_bool(*share) {
            return Fate::Normal;
        }
        let (fate, count) = if random.random_bool(0.5) {
            (Fate::AnswerLost, &self.answers_lost)
        } else {
            (Fate::NeverSent, &self.never_sent)
        };
        count.fetch_add(1, Ordering::SeqCst);
        fate
    }
}

/// The client's side of the protocol, cut into messages.
#[derive(Default)]
struct Frontend {
    buffer: Vec<u8>,
    started: bool,
}

impl Frontend {
    /// The next whole message. The first one of a connection has no type byte.
    fn message(&mut self) -> Option<Vec<u8>> {
        let kind = usize::from(self.started);
        let length = self.buffer.get(kind..kind + 4)?;
        let length = u32::from_be_bytes(length.try_into().ok()?) as usize + kind;
        if self.buffer.len() < length {
            return None;
        }
        self.started = true;
        let rest = self.buffer.split_off(length);
        Some(std::mem::replace(&mut self.buffer, rest))
    }
}
