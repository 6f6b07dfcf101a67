//! A worker's way to the broker.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::Mutex,
};
use whizbang::{
    BoxError, Envelope,
    transport::{Acknowledge, Content, Delivery, Intake, Sent, Transport, TransportError},
};

use super::wire::{Answer, Message, Request, Verdict};

/// A connection that is made when it is needed. Clones share it, one request at a time.
#[derive(Clone)]
pub(crate) struct Line {
    address: Arc<str>,
    stream: Arc<Mutex<Option<BufReader<TcpStream>>>>,
}

impl Line {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            stream: Arc::default(),
        }
    }

    /// Asks and waits for the answer. A request that fails or is given up closes the connection.
    pub(crate) async fn ask(&self, request: &Request) -> Result<Answer, BoxError> {
        let mut place = self.stream.lock().await;
        let mut stream = match place.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&*self.address).await?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.get_mut().write_all(&line).await?;
        let mut answer = String::new();
        if stream.read_line(&mut answer).await? == 0 {
            return Err("the broker closed the connection".into());
        }
        *place = Some(stream);
        Ok(serde_json::from_str(&answer)?)
    }

    pub(crate) async fn may_strike(&self, number: i64) -> Result<bool, BoxError> {
        match self.ask(&Request::MayStrike { number }).await? {
            Answer::Strike(yes) => Ok(yes),
            other => Err(format!("an answer to another question: {other:?}").into()),
        }
    }
}

/// The broker as a service sees it.
pub(crate) struct Port {
    service: Arc<str>,
    /// Sends and acknowledgements do not wait for a receive.
    sending: Line,
    receiving: Line,
    settling: Line,
}

impl Port {
    pub(crate) fn new(address: &str, service: &str) -> Self {
        Self {
            service: service.into(),
            sending: Line::new(address),
            receiving: Line::new(address),
            settling: Line::new(address),
        }
    }

    async fn pass_on(&self, batch: &[Envelope]) -> Result<Vec<Sent>, TransportError> {
        let messages = batch.iter().map(Message::new).collect();
        let asked = self.sending.ask(&Request::Send { messages }).await;
        match asked.map_err(broken)? {
            Answer::Sent(verdicts) => Ok(verdicts.into_iter().map(sent).collect()),
            _ => Err(error("the broker is away", None)),
        }
    }

    async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, TransportError> {
        let request = Request::Receive {
            service: self.service.to_string(),
            max,
            wait_ms: wait.as_millis().try_into().unwrap_or(1_000),
        };
        match self.receiving.ask(&request).await.map_err(broken)? {
            Answer::Delivered(batch) => Ok(batch
                .into_iter()
                .map(|(delivery, message)| self.delivery(delivery, message))
                .collect()),
            _ => Err(error("the broker is away", None)),
        }
    }

    fn delivery(&self, delivery: u64, message: Message) -> Delivery {
        let receipt = SettledBy {
            line: self.settling.clone(),
            service: Arc::clone(&self.service),
            delivery,
        };
        Delivery::new(Content::Message(Box::new(message.into_raw())), receipt)
    }
}

fn sent(verdict: Verdict) -> Sent {
    match verdict {
        Verdict::Acknowledged => Sent::Acknowledged,
        Verdict::Refused => Sent::Refused("not today".to_owned()),
        Verdict::Skipped => Sent::Skipped,
    }
}

fn broken(source: BoxError) -> TransportError {
    error("the connection to the broker broke", Some(source))
}

fn error(what: &str, source: Option<BoxError>) -> TransportError {
    TransportError {
        transport: "broker".to_owned(),
        what: what.to_owned(),
        source,
    }
}

struct SettledBy {
    line: Line,
    service: Arc<str>,
    delivery: u64,
}

impl SettledBy {
    async fn settle(self, done: bool) -> Result<(), TransportError> {
        let request = Request::Settle {
            service: self.service.to_string(),
            delivery: self.delivery,
            done,
        };
        self.line.ask(&request).await.map(drop).map_err(broken)
    }
}

impl Acknowledge for SettledBy {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(self.settle(true))
    }

    fn nack(self: Box<Self>) -> BoxFuture<'static, Result<(), TransportError>> {
        Box::pin(self.settle(false))
    }
}

impl Transport for Port {
    fn name(&self) -> &str {
        "broker"
    }

    fn start<'a>(&'a self, _intake: &'a Intake) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn send<'a>(
        &'a self,
        batch: &'a [Envelope],
    ) -> BoxFuture<'a, Result<Vec<Sent>, TransportError>> {
        Box::pin(self.pass_on(batch))
    }

    fn receive(
        &self,
        max: usize,
        wait: Duration,
    ) -> BoxFuture<'_, Result<Vec<Delivery>, TransportError>> {
        Box::pin(self.fetch(max, wait))
    }
}
