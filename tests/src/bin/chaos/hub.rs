//! The broker's door: a port on this machine.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::broker::Broker;

/// Lets workers talk to the broker until it is dropped.
pub(crate) struct Hub {
    pub(crate) address: String,
    accepting: JoinHandle<()>,
}

impl Hub {
    pub(crate) async fn open(broker: Broker) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?.to_string();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let broker = broker.clone();
                // A worker that is killed in the middle of a line is no error of the broker.
                tokio::spawn(async move { serve(stream, &broker).await });
            }
        });
        Ok(Self { address, accepting })
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(stream: TcpStream, broker: &Broker) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let request = serde_json::from_str(&line)?;
        let mut answer = serde_json::to_vec(&broker.answer(request).await)?;
        answer.push(b'\n');
        stream.get_mut().write_all(&answer).await?;
        line.clear();
    }
    Ok(())
}
