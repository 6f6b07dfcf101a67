//! The claim protocol: gates, quiet rows, fences, take-over, lanes with several handlers.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{Claim, Db, Message, Outcome, claim, claim_h, complete, exec, ids, next, put};

pub(crate) async fn with_h() -> anyhow::Result<(Db, PgConnection)> {
    let db = Db::new().await?;
    db.subscribe("h", "l").await?;
    let connection = db.connect().await?;
    Ok((db, connection))
}

pub(crate) fn stream_of(length: usize) -> (Uuid, Vec<Message>) {
    let stream = Uuid::now_v7();
    (stream, (0..length).map(|_| Message::of(stream)).collect())
}

#[tokio::test]
async fn two_claimers_share_rows_and_never_a_stream() -> Outcome {
    let (db, mut one) = with_h().await?;
    let mut two = db.connect().await?;
    let (_, rows) = stream_of(3);
    put(&mut one, &rows).await?;
    let loose: Vec<_> = (0..4).map(|_| Message::new()).collect();
    put(&mut one, &loose).await?;
    exec(&mut one, "BEGIN").await?;
    let limited = Claim {
        limit: 5,
        ..Claim::by(&[("h", "l")])
    };
    let first = claim(&mut one, &limited).await?;
    let second = claim_h(&mut two).await?;
    exec(&mut one, "COMMIT").await?;
    assert!(!first.is_empty());
    let mut all = ids(&first);
    all.extend(ids(&second));
    all.sort();
    let before = all.len();
    all.dedup();
    assert_eq!(before, all.len(), "no row twice");
    assert!(
        claim_h(&mut two)
            .await?
            .iter()
            .all(|work| !all.contains(&work.id))
    );
    Ok(())
}

#[tokio::test]
async fn a_claim_keeps_to_its_limits() -> Outcome {
    let (db, mut connection) = with_h().await?;
    db.subscribe_to("g", "l", "u").await?;
    for _ in 0..12 {
        let (stream, rows) = stream_of(4);
        put(&mut connection, &rows).await?;
        let loose = [
            Message::new(),
            Message {
                kind: "u",
                ..Message::of(stream)
            },
        ];
        put(&mut connection, &loose).await?;
    }
    for (limit, room) in [(10, 100), (100, 7), (3, 3), (1, 1), (100, 100)] {
        let request = Claim {
            limit,
            room: vec![("h", room, "l")],
            ..Claim::by(&[])
        };
        let got = claim(&mut connection, &request).await?;
        assert!(!got.is_empty());
        assert!(
            got.len() <= limit as usize,
            "{} rows at a limit of {limit}",
            got.len()
        );
        assert!(
            got.len() <= room as usize,
            "{} rows with room for {room}",
            got.len()
        );
        db.run("UPDATE wh_inbox SET due_at = clock_timestamp(), lease_token = NULL WHERE due_at IS NOT NULL; UPDATE wh_inbox_streams SET due_at = clock_timestamp(), lease_token = NULL").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_drains_in_order_through_runs_and_its_gate_goes() -> Outcome {
    let (db, mut connection) = with_h().await?;
    let (_, rows) = stream_of(45);
    put(&mut connection, &rows).await?;
    let mut seen = Vec::new();
    let mut run = claim_h(&mut connection).await?;
    while let Some(last) = run.last().cloned() {
        for (place, work) in run.iter().enumerate() {
            let is_last = place + 1 == run.len();
            let answer = complete(&mut connection, work, is_last).await?;
            seen.push(work.id);
            let done = seen.len() == rows.len();
            assert_eq!(answer, if done { "done" } else { "more" });
        }
        run = next(&mut connection, &last, &["h"]).await?;
    }
    assert_eq!(seen, rows.iter().map(|one| one.id).collect::<Vec<_>>());
    assert_eq!(
        db.value::<i64>("SELECT count(*) FROM wh_inbox_streams")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test]
async fn a_head_of_an_unknown_handler_is_left_alone_and_does_not_use_up_the_limit() -> Outcome {
    let db = Db::new().await?;
    db.subscribe_to("old", "both", "first").await?;
    db.subscribe_to("new", "both", "second").await?;
    let mut connection = db.connect().await?;
    let message = |kind, stream| Message {
        kind,
        ..Message::of(stream)
    };
    for _ in 0..30 {
        let stream = Uuid::now_v7();
        put(
            &mut connection,
            &[message("second", stream), message("first", stream)],
        )
        .await?;
    }
    let reachable = Uuid::now_v7();
    let mixed = [
        message("first", reachable),
        message("first", reachable),
        message("second", reachable),
        message("first", reachable),
    ];
    put(&mut connection, &mixed).await?;
    let request = Claim {
        limit: 10,
        ..Claim::by(&[("old", "both")])
    };
    let got = claim(&mut connection, &request).await?;
    assert_eq!(
        ids(&got),
        [mixed[0].id, mixed[1].id],
        "up to the row it cannot run"
    );
    let leased = "SELECT count(*) FROM wh_inbox_streams WHERE lease_token IS NOT NULL";
    assert_eq!(db.value::<i64>(leased).await?, 1);
    complete(&mut connection, &got[0], false).await?;
    complete(&mut connection, &got[1], true).await?;
    assert_eq!(next(&mut connection, &got[1], &["old"]).await?.len(), 0);
    assert_eq!(
        db.value::<i64>(leased).await?,
        0,
        "given back to whoever has the handler"
    );
    let request = Claim {
        run: 1,
        ..Claim::by(&[("new", "both")])
    };
    assert_eq!(claim(&mut connection, &request).await?.len(), 31);
    Ok(())
}

#[tokio::test]
async fn a_handler_that_changed_its_lane_still_finds_what_was_stored_before() -> Outcome {
    let db = Db::new().await?;
    let mut connection = db.connect().await?;
    register(&mut connection, "h", "before").await?;
    let (_, rows) = stream_of(2);
    put(&mut connection, &rows).await?;
    register(&mut connection, "h", "after").await?;
    let got = claim(&mut connection, &Claim::by(&[("h", "after")])).await?;
    assert_eq!(ids(&got), rows.iter().map(|one| one.id).collect::<Vec<_>>());
    Ok(())
}

async fn register(connection: &mut PgConnection, handler: &str, lane: &str) -> Outcome {
    let answer: String =
        sqlx::query_scalar("SELECT register_instance($1, 's', 'host', $2, $3, $4)")
            .bind(Uuid::now_v7())
            .bind(vec![handler])
            .bind(vec!["t"])
            .bind(vec![lane])
            .fetch_one(connection)
            .await?;
    anyhow::ensure!(answer == "ok", "{answer}");
    Ok(())
}
