//! The SQL of the README and of the guide runs as it stands, and the grants suffice.

use whizbang::transport::InProcess;
use whizbang_postgres::Whizbang;
use whizbang_tests::{Ping, World, scripted, wait_until};

const OPERATING: &str = include_str!("../../docs/operating.md");

/// The SQL blocks of a page, in order.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

async fn run(world: &World, sql: &str) {
    let statement = sqlx::AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(statement)
        .execute(&world.pool)
        .await
        .unwrap_or_else(|error| panic!("{error} in:\n{sql}"));
}

#[tokio::test]
async fn the_queries_run() {
    let world = World::new().await;
    run(&world, "CREATE TABLE stock (sku text, available bigint)").await;
    let pages = [
        include_str!("../../README.md"),
        include_str!("../../docs/exactly-once.md"),
        include_str!("../../docs/idempotent-commands.md"),
    ];
    // The grants have a test of their own: roles belong to the whole server.
    let operating = blocks(OPERATING).into_iter().skip(1);
    let all: Vec<_> = pages
        .into_iter()
        .flat_map(blocks)
        .chain(operating)
        .collect();
    assert!(all.len() >= 6, "{} blocks", all.len());
    for sql in all {
        run(&world, sql).await;
    }
}

#[tokio::test]
async fn the_grants_suffice() {
    let world = World::new().await;
    let role = format!("guide_{}", uuid::Uuid::new_v4().simple());
    let grants = blocks(OPERATING)[0].replace("orders_service", &role);
    run(&world, &grants).await;
    run(&world, &format!("ALTER ROLE {role} PASSWORD 'guide'")).await;
    // The tables of the test's own handlers; those of the framework get what the page says.
    run(&world, &format!("GRANT ALL ON effects, payments TO {role}")).await;

    let options = world.database().connect_options();
    let pool = sqlx::PgPool::connect_with(options.username(&role).password("guide"))
        .await
        .expect("connect as the service's role");
    let user: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(&pool)
        .await
        .expect("who am I");
    assert_eq!(user, role);
    let transport = InProcess::new("feed");
    let app = Whizbang::builder(pool.clone())
        .service("tests")
        .without_discovery()
        .register::<scripted>()
        .state(world.script.clone())
        .intake(transport.clone())
        .start()
        .await
        .expect("start");
    let envelope = whizbang::Envelope::new(&Ping { number: 1 }).expect("encode");
    transport.deliver(whizbang::transport::RawMessage::from_envelope(&envelope));
    transport.deliver_poison(b"x".to_vec(), "no message");
    wait_until("the message is handled", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    world.dead_letters(1).await;
    for sql in [
        "SELECT * FROM perform_maintenance()",
        "SELECT * FROM wh_status()",
        "SELECT * FROM requeue_dead_letters(ARRAY[1::bigint])",
    ] {
        let done = sqlx::query(sql).fetch_all(&pool).await;
        assert!(done.is_ok(), "{sql}: {done:?}");
    }
    app.shutdown().await.expect("shutdown");
    pool.close().await;
    run(&world, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
