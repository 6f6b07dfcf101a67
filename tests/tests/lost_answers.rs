//! A call that leases rows takes effect, and its answer is lost: nobody knows that the rows are
//! leased. They must not wait for the end of a lease, and it must not count as a loss (P3).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, sleep};
use whizbang::{
    App, Builder, Envelope, Event, Metadata, PublishError, StoreError, handler,
    testing::{Fault, Faults, MemoryStore, Operation},
    transport::{InProcess, RawMessage},
};

type Context<'c> = whizbang::Context<'c, MemoryStore>;

#[derive(Serialize, Deserialize, Event)]
#[message(name = "lost.noted")]
struct Noted {
    number: u32,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "lost.stepped", stream = stream)]
struct Stepped {
    stream: String,
    number: u32,
}

#[handler(backoff = "1m..1m")]
async fn note(event: Noted, meta: &Metadata, cx: &mut Context<'_>) -> Result<(), StoreError> {
    let row = json!(["", event.number, meta.attempt]);
    cx.conn().append("effects", row).await
}

#[handler(backoff = "1m..1m")]
async fn step(event: Stepped, meta: &Metadata, cx: &mut Context<'_>) -> Result<(), StoreError> {
    let row = json!([event.stream, event.number, meta.attempt]);
    cx.conn().append("effects", row).await
}

/// Far below the end of a lease, which is a minute.
const SOON: Duration = Duration::from_secs(15);

/// Loses the next answer of one operation once it is armed, and counts rows that run alone because
/// their lease was lost before.
struct LosesOne {
    operation: Operation,
    armed: Arc<AtomicBool>,
    suspects: Arc<AtomicU32>,
}

impl Faults for LosesOne {
    fn before(&self, operation: Operation) -> Fault {
        if operation == Operation::MarkStarted {
            self.suspects.fetch_add(1, Ordering::SeqCst);
        }
        Fault::None
    }

    fn after(&self, operation: Operation) -> Fault {
        if operation == self.operation && self.armed.swap(false, Ordering::SeqCst) {
            let lingers = Duration::ZERO;
            return Fault::Lost { lingers };
        }
        Fault::None
    }
}

struct Service {
    store: MemoryStore,
    app: App<MemoryStore>,
    transport: InProcess,
    armed: Arc<AtomicBool>,
    suspects: Arc<AtomicU32>,
}

impl Service {
    async fn losing(operation: Operation) -> Self {
        let store = MemoryStore::new();
        let faults = LosesOne {
            operation,
            armed: Arc::default(),
            suspects: Arc::default(),
        };
        let (armed, suspects) = (Arc::clone(&faults.armed), Arc::clone(&faults.suspects));
        let transport = InProcess::new("in");
        let app = Builder::new(store.client(faults))
            .service("lost")
            .without_discovery()
            .register::<note>()
            .register::<step>()
            .intake(transport.clone())
            .start()
            .await
            .expect("start");
        Self {
            store,
            app,
            transport,
            armed,
            suspects,
        }
    }

    fn deliver(&self) {
        let plain = Envelope::new(&Noted { number: 1 }).expect("an envelope");
        self.transport.deliver(RawMessage::from_envelope(&plain));
        for number in 1..=3 {
            let step = Stepped {
                stream: "s".to_owned(),
                number,
            };
            let envelope = Envelope::new(&step).expect("an envelope");
            self.transport.deliver(RawMessage::from_envelope(&envelope));
        }
    }

    async fn publish(&self) {
        let dispatcher = self.app.dispatcher();
        let published = dispatcher.transaction(async |tx| {
            dispatcher.publish(tx, &Noted { number: 1 }).await?;
            for number in 1..=3 {
                let stream = "s".to_owned();
                dispatcher.publish(tx, &Stepped { stream, number }).await?;
            }
            Ok::<_, PublishError>(())
        });
        published.await.expect("a commit");
    }

    /// Everything was handled once, at the first attempt, in order, and long before a lease ended.
    async fn until_soon_handled(self, since: Instant) {
        while self.store.list_from("effects", 0).len() < 4 {
            assert!(since.elapsed() < SOON, "{}", self.store.describe());
            sleep(Duration::from_millis(10)).await;
        }
        assert!(!self.armed.load(Ordering::SeqCst), "no answer was lost");
        self.app.shutdown().await.expect("shutdown");
        let mut effects = self.store.list_from("effects", 0);
        effects.sort_by_key(|row| row[0] != "");
        let expected = [
            json!(["", 1, 1]),
            json!(["s", 1, 1]),
            json!(["s", 2, 1]),
            json!(["s", 3, 1]),
        ];
        assert_eq!(effects, expected);
        let suspects = self.suspects.load(Ordering::SeqCst);
        assert_eq!(suspects, 0, "a lost answer is no loss");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_store_from_a_transport() {
    let service = Service::losing(Operation::StoreInbox).await;
    let since = Instant::now();
    service.armed.store(true, Ordering::SeqCst);
    service.deliver();
    service.until_soon_handled(since).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_local_delivery() {
    let service = Service::losing(Operation::DeliverLocally).await;
    let since = Instant::now();
    service.armed.store(true, Ordering::SeqCst);
    service.publish().await;
    service.until_soon_handled(since).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_claim() {
    let service = Service::losing(Operation::Claim).await;
    for handler in ["note", "step"] {
        assert!(service.app.pause(handler), "{handler} is there");
    }
    service.deliver();
    while service.app.counts().stored < 4 {
        sleep(Duration::from_millis(10)).await;
    }
    let since = Instant::now();
    service.armed.store(true, Ordering::SeqCst);
    for handler in ["note", "step"] {
        assert!(service.app.resume(handler), "{handler} is there");
    }
    service.until_soon_handled(since).await;
}
