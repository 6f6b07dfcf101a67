//! A batch of deliveries meets conflicts, and its messages are stored one by one: what must come
//! again may not be overtaken by later messages of its stream (P5).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use whizbang::{
    Builder, Envelope, Event, StoreError, handler,
    testing::{Fault, Faults, MemoryStore, Operation},
    transport::{InProcess, RawMessage},
};
use whizbang_tests::wait_until;

type Context<'c> = whizbang::Context<'c, MemoryStore>;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "intake.stepped", stream = stream)]
struct Stepped {
    stream: String,
    number: u32,
}

#[handler]
async fn step(event: Stepped, cx: &mut Context<'_>) -> Result<(), StoreError> {
    let row = json!([event.stream, event.number]);
    cx.conn().append("effects", row).await
}

/// The whole batch meets a conflict, then its first message alone; everything later is stored.
struct TwoConflicts(Arc<AtomicU32>);

impl Faults for TwoConflicts {
    fn before(&self, operation: Operation) -> Fault {
        if operation == Operation::StoreInbox && self.0.fetch_add(1, Ordering::SeqCst) < 2 {
            return Fault::Conflict;
        }
        Fault::None
    }

    fn after(&self, _operation: Operation) -> Fault {
        Fault::None
    }
}

#[tokio::test]
async fn a_message_that_must_come_again_is_not_overtaken_in_its_stream() {
    let store = MemoryStore::new();
    let stores = Arc::new(AtomicU32::new(0));
    let transport = InProcess::new("in");
    for (stream, number) in [("held up", 1), ("free", 1), ("held up", 2), ("held up", 3)] {
        let stream = stream.to_owned();
        let envelope = Envelope::new(&Stepped { stream, number }).expect("an envelope");
        transport.deliver(RawMessage::from_envelope(&envelope));
    }
    let app = Builder::new(store.client(TwoConflicts(Arc::clone(&stores))))
        .service("intake")
        .without_discovery()
        .register::<step>()
        .intake(transport.clone())
        .configure(|config| config.idle_poll = Duration::from_millis(20))
        .start()
        .await
        .expect("start");
    wait_until("all are handled", || async {
        store.list_from("effects", 0).len() == 4 && transport.waiting() == 0
    })
    .await;
    app.shutdown().await.expect("shutdown");
    let effects = store.list_from("effects", 0);
    let of = |stream: &str| -> Vec<_> {
        let rows = effects.iter().filter(|row| row[0] == stream);
        rows.map(|row| row[1].clone()).collect()
    };
    assert_eq!(of("held up"), [1, 2, 3]);
    assert_eq!(of("free"), [1]);
    // The batch, the first message alone, the free one alone, and the rest when it came again.
    assert_eq!(stores.load(Ordering::SeqCst), 4);
}
