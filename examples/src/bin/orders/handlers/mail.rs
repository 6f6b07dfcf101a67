//! An effect outside the database, which no transaction can take back.

use uuid::Uuid;
use whizbang::{Metadata, State, handler};

use crate::{
    messages::PaymentTaken,
    wire::{Report, Reporter},
};

/// "Sends" mails by telling the parent process about them.
#[derive(Clone)]
pub(crate) struct Mailer {
    reporter: Reporter,
}

impl Mailer {
    pub(crate) fn new(reporter: Reporter) -> Self {
        Self { reporter }
    }

    fn send(&self, order_id: Uuid, idempotency_key: Uuid) -> std::io::Result<()> {
        self.reporter.say(&Report::Mailed {
            order_id,
            idempotency_key,
        })
    }
}

/// Takes no context, so it holds no transaction: a mail is sent at least once, and after a crash
/// perhaps twice. The message id goes along, for the other side to recognise a repeat by.
#[handler]
pub(crate) async fn mail_customer(
    event: PaymentTaken,
    State(mailer): State<Mailer>,
    meta: &Metadata,
) -> std::io::Result<()> {
    mailer.send(event.order_id, meta.message_id)
}
