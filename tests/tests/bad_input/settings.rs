//! Wrong values in `wh_settings`.

use whizbang_tests::{Ping, World, wait_until};

use super::support::{goes_on, start};

const KEYS: [&str; 3] = [
    "dedup_retention_days",
    "command_retention_days",
    "subscription_retention_hours",
];

async fn set(world: &World, key: &str, value: &str) {
    sqlx::query("INSERT INTO wh_settings (setting_key, setting_value) VALUES ($1, $2) ON CONFLICT (setting_key) DO UPDATE SET setting_value = $2")
        .bind(key)
        .bind(value)
        .execute(&world.pool)
        .await
        .expect("a setting");
}

#[tokio::test]
async fn values_that_are_no_numbers_fall_back_to_the_default_and_are_reported() {
    let world = World::new().await;
    let app = start(&world).await;
    for value in [
        "ninety",
        "",
        "-1",
        "0",
        "1.5",
        "99999999999",
        "30 days",
        "'; DROP TABLE x",
    ] {
        for key in KEYS {
            set(&world, key, value).await;
        }
        let ignored = world
            .count("SELECT count(*) FROM perform_maintenance() WHERE task LIKE 'setting_ignored:%'")
            .await;
        assert_eq!(ignored, 3, "`{value}`");
        goes_on(&world).await;
    }
    app.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn a_horizon_that_is_no_time_lets_messages_through() {
    let world = World::new().await;
    set(&world, "dedup_purged_before", "the day before yesterday").await;
    let app = start(&world).await;
    world.feed(&Ping { number: 1 });
    wait_until("it was handled", || async {
        world.effects("scripted", 1).await == 1
    })
    .await;
    goes_on(&world).await;
    app.shutdown().await.expect("shutdown");
}
