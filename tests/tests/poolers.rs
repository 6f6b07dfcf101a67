//! PgBouncer in front of PostgreSQL, in the modes that the documentation lists.
//!
//! Skipped where it is not installed (Debian: `apt-get install pgbouncer`); the output says so.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};
use uuid::Uuid;
use whizbang::{BoxError, handler};
use whizbang_postgres::{HandlerContext, PgStore, embedded::Server};
use whizbang_tests::{Ping, Stepped, World, wait_until};

/// Servers that all clients of the pooler share; fewer than there are clients.
const SERVERS: usize = 3;

/// The server, the pooler in front of it, and a world that goes through both.
struct Pooled {
    pooler: Child,
    folder: PathBuf,
    options: PgConnectOptions,
    /// Dropped last.
    server: Server,
}

/// Where PgBouncer is and its version, or `None` and a word about it.
fn pgbouncer() -> Option<(PathBuf, (u32, u32))> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path)
        .chain(usual)
        .map(|folder| folder.join("pgbouncer"))
        .find(|file| file.is_file());
    let Some(program) = found else {
        eprintln!("SKIPPED: PgBouncer is not installed (Debian: apt-get install pgbouncer)");
        return None;
    };
    let output = Command::new(&program).arg("--version").output();
    let printed = output.expect("it prints its version").stdout;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let version = printed.split_whitespace().nth(1).expect("a version");
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    let version = parts.next().zip(parts.next()).expect("two numbers");
    Some((program, version))
}

impl Pooled {
    async fn start(program: &Path, mode: &str, settings: &str) -> Self {
        let server = tokio::task::spawn_blocking(Server::start)
            .await
            .expect("a thread")
            .expect("a server");
        server.create_database("pooled").await.expect("a database");
        let direct = server.connect_options("pooled");
        let sockets = direct.get_socket().expect("a socket").clone();
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let folder = server.folder().join("pgbouncer");
        fs::create_dir(&folder).expect("a folder");
        let file = folder.join("pgbouncer.ini");
        let text = format!(
            "[databases]\npooled = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {SERVERS}\nignore_startup_parameters = extra_float_digits\n{settings}\n",
            sockets.display(),
            direct.get_port(),
            direct.get_username(),
        );
        fs::write(&file, text).expect("a configuration");
        // It refuses to be root, and the socket is its owner's only.
        let owner = fs::metadata(&sockets).expect("a folder");
        let mut command = Command::new(program);
        command
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        if owner.uid() != 0 {
            command.uid(owner.uid()).gid(owner.gid());
        }
        let pooler = command.spawn().expect("PgBouncer starts");
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(port)
            .ssl_mode(PgSslMode::Disable)
            .username(direct.get_username())
            .database("pooled");
        let pooled = Self {
            pooler,
            folder,
            options,
            server,
        };
        wait_until("PgBouncer answers", || async {
            match PgConnection::connect_with(&pooled.options).await {
                Ok(connection) => connection.close().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
        pooled
    }

    /// A world whose tables were made directly, and whose pool goes through the pooler.
    async fn world(&self) -> World {
        let direct = World::on(self.server.connect_options("pooled")).await;
        direct.pool.close().await;
        World::joined(self.options.clone())
    }

    /// The pool of another process.
    fn pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(6)
            .connect_lazy_with(self.options.clone())
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed before.
        let _ = self.pooler.kill();
        let _ = self.pooler.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A statement of its own for each message, since a mixed-up one that is the same goes unnoticed.
async fn own_statement(
    cx: &mut HandlerContext<'_>,
    stream: &str,
    number: i64,
) -> Result<(), BoxError> {
    let handler = cx.metadata().handler.clone();
    let statement = format!(
        "INSERT INTO effects (handler, stream, number) SELECT $1, $2, {number} RETURNING number + {number}"
    );
    let answer: i64 = sqlx::query_scalar(AssertSqlSafe(statement))
        .persistent(false)
        .bind(handler)
        .bind(stream)
        .fetch_one(cx.conn())
        .await?;
    if answer != 2 * number {
        return Err(format!("the answer of another statement: {answer}").into());
    }
    Ok(())
}

#[handler]
async fn pinged(ping: Ping, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    own_statement(cx, "", ping.number).await?;
    let (stream, number) = ((ping.number % 7).to_string(), ping.number);
    cx.publish(&Stepped { stream, number }).await?;
    Ok(())
}

#[handler]
async fn stepped(step: Stepped, cx: &mut HandlerContext<'_>) -> Result<(), BoxError> {
    own_statement(cx, &step.stream, step.number).await
}

/// Two instances with a pool each work through many messages.
async fn work_through(pooled: &Pooled, pooler: bool) {
    const COUNT: i64 = 200;
    let world = pooled.world().await;
    let mut apps = Vec::new();
    for _ in 0..2 {
        let store = PgStore::new(pooled.pool()).pooler(pooler);
        let service = world
            .service_on(store)
            .register::<pinged>()
            .register::<stepped>()
            .configure(|config| {
                config.heartbeat = Duration::from_millis(100);
                config.maintenance = Duration::from_millis(200);
            });
        apps.push(service.start().await.expect("start"));
    }
    for number in 0..COUNT {
        let id = Uuid::now_v7();
        world.deliver(id, &Ping { number });
        world.deliver(id, &Ping { number });
    }
    // Looked at directly, so that the test itself needs no mode.
    let direct = World::joined(pooled.server.connect_options("pooled"));
    wait_until("all are done", || async {
        world.transport.waiting() == 0 && direct.is_quiet().await
    })
    .await;
    for handler in ["pinged", "stepped"] {
        for number in 0..COUNT {
            assert_eq!(
                direct.effects(handler, number).await,
                1,
                "{handler} {number}"
            );
        }
    }
    assert_eq!(
        direct.count("SELECT count(*) FROM wh_dead_letters").await,
        0
    );
    for app in apps {
        app.shutdown().await.expect("shutdown");
    }
}

/// What `start()` says to a pooler.
async fn refusal(pooled: &Pooled, world: &World, pooler: bool) -> Option<String> {
    let store = PgStore::new(pooled.pool()).pooler(pooler);
    let service = world.service_on(store).register::<pinged>();
    match service.start().await {
        Ok(app) => {
            app.shutdown().await.expect("shutdown");
            None
        }
        Err(error) => Some(whizbang::error_chain(&error)),
    }
}

#[tokio::test]
async fn behind_a_pooler_without_prepared_statements_the_pooler_mode_works() {
    let Some((program, _)) = pgbouncer() else {
        return;
    };
    let pooled = Pooled::start(&program, "transaction", "").await;
    work_through(&pooled, true).await;
}

#[tokio::test]
async fn a_pooler_that_mixes_up_statements_is_refused() {
    let Some((program, version)) = pgbouncer() else {
        return;
    };
    for settings in ["", "server_round_robin = 1"] {
        let off = match version >= (1, 21) {
            true => "max_prepared_statements = 0",
            false => "",
        };
        let settings = format!("{settings}\n{off}");
        let pooled = Pooled::start(&program, "transaction", &settings).await;
        let world = pooled.world().await;
        // Servers that are there already, as on a pooler that others use.
        let mut warm = Vec::new();
        for _ in 0..SERVERS {
            let mut connection = PgConnection::connect_with(&pooled.options)
                .await
                .expect("a connection");
            sqlx::raw_sql("BEGIN")
                .execute(&mut connection)
                .await
                .expect("begin");
            warm.push(connection);
        }
        for mut connection in warm {
            sqlx::raw_sql("COMMIT")
                .execute(&mut connection)
                .await
                .expect("commit");
        }
        let text = refusal(&pooled, &world, false).await.expect("a refusal");
        assert!(text.contains("mixes up the prepared statements"), "{text}");
        assert!(text.contains("PgStore::pooler(true)"), "{text}");
        assert_eq!(refusal(&pooled, &world, true).await, None, "the other mode");
    }
}

#[tokio::test]
async fn behind_a_session_pooler_nothing_needs_to_be_said() {
    let Some((program, _)) = pgbouncer() else {
        return;
    };
    // A session keeps its server, so there must be one for each.
    let pooled = Pooled::start(&program, "session", "default_pool_size = 40").await;
    work_through(&pooled, false).await;
}

#[tokio::test]
async fn a_statement_pooler_is_refused_in_both_modes() {
    let Some((program, _)) = pgbouncer() else {
        return;
    };
    let pooled = Pooled::start(&program, "statement", "").await;
    let world = pooled.world().await;
    let text = refusal(&pooled, &world, false).await.expect("a refusal");
    assert!(text.contains("mixes up the prepared statements"), "{text}");
    let text = refusal(&pooled, &world, true).await.expect("a refusal");
    assert!(text.contains("statement pooling mode"), "{text}");
}

#[tokio::test]
async fn behind_a_pooler_with_prepared_statements_nothing_needs_to_be_said() {
    let Some((program, version)) = pgbouncer() else {
        return;
    };
    if version < (1, 21) {
        eprintln!("SKIPPED: PgBouncer {version:?} has no max_prepared_statements; 1.21 has");
        return;
    }
    let pooled = Pooled::start(&program, "transaction", "max_prepared_statements = 100").await;
    work_through(&pooled, false).await;
}
