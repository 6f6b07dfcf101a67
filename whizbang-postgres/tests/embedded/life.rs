//! A server while it lives.

use sqlx::{Connection, PgConnection};
use whizbang_postgres::embedded::Server;

use crate::support::{Outcome, processes_of, wait_until};

async fn show(server: &Server, name: &str) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    sqlx::query_scalar("SELECT current_setting($1)")
        .bind(name)
        .fetch_one(&mut connection)
        .await
}

#[tokio::test]
async fn a_server_is_quick_and_a_durable_one_is_durable() -> Outcome {
    let quick = Server::start()?;
    assert_eq!(show(&quick, "fsync").await?, "off");
    let durable = Server::builder().durable(true).start()?;
    assert_eq!(show(&durable, "fsync").await?, "on");
    for server in [&quick, &durable] {
        assert_eq!(show(server, "synchronous_commit").await?, "on");
        assert_eq!(show(server, "max_connections").await?, "200");
        // Nobody else on this machine may get in.
        assert_eq!(show(server, "listen_addresses").await?, "");
    }
    Ok(())
}

#[tokio::test]
async fn a_setting_of_the_builder_wins() -> Outcome {
    let server = Server::builder()
        .setting("max_connections", 17)
        .setting("application_name", "it's \\ this")
        .start()?;
    assert_eq!(show(&server, "max_connections").await?, "17");
    let sent = show(&server, "application_name").await?;
    assert_eq!(sent, "it's \\ this");
    Ok(())
}

#[tokio::test]
async fn several_servers_at_once_are_strangers() -> Outcome {
    let start = || tokio::task::spawn_blocking(Server::start);
    let (one, two, three) = tokio::try_join!(start(), start(), start())?;
    let servers = [one?, two?, three?];
    for server in &servers {
        server.create_database("same_name").await?;
    }
    let again = servers[0].create_database("same_name").await.unwrap_err();
    assert!(again.to_string().contains("`same_name`"), "{again}");
    Ok(())
}

#[tokio::test]
async fn committed_data_survives_a_kill_and_a_restart() -> Outcome {
    let mut server = Server::start()?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    sqlx::query("CREATE TABLE t AS SELECT 1 AS a")
        .execute(&mut connection)
        .await?;
    let first = server.process_id();

    server.kill()?;
    assert_eq!(server.process_id(), None);
    let ping = connection.ping().await;
    assert!(ping.is_err(), "the connection outlived the server");

    server.restart()?;
    assert_ne!(server.process_id(), first);
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    sqlx::query("INSERT INTO t VALUES (2)")
        .execute(&mut connection)
        .await?;

    server.restart()?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    let sum: i64 = sqlx::query_scalar("SELECT sum(a) FROM t")
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(sum, 3);
    Ok(())
}

#[tokio::test]
async fn a_kill_ends_a_session_that_computes() -> Outcome {
    let mut server = Server::start()?;
    let mut busy = PgConnection::connect(&server.url("postgres")).await?;
    let endless = tokio::spawn(async move {
        sqlx::query("SELECT count(*) FROM generate_series(1, 1000000000000) AS n")
            .execute(&mut busy)
            .await
            .map(drop)
    });
    let mut other = PgConnection::connect(&server.url("postgres")).await?;
    let mut running = false;
    while !running {
        running = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query ~ '^SELECT count' AND state = 'active')",
        )
        .fetch_one(&mut other)
        .await?;
    }
    server.kill()?;
    let data = server.folder().join("data");
    assert_eq!(processes_of(&data), Vec::<String>::new());
    assert!(endless.await?.is_err());
    server.restart()?;
    wait_until("the server is back", || server.process_id().is_some());
    Ok(())
}
