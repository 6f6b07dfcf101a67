//! Putting a service together.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{
    app::App,
    shared::{Shared, SharedParts},
    stop::Stop,
};
use crate::{
    Backoff, BreakerPolicy, Command, Dispatcher, DispatcherParts, RelayHint, Routing,
    RuntimeConfig, StartError, StartFault, error_chain,
    handler::{Definition, Registered, States},
    registry::{Handlers, discovered, place, without_repeats},
    store::{Instance, Store},
    transport::{Intake, Transport},
};

/// Completions of handlers without transaction that may wait to be written.
const UNWRITTEN: usize = 1_000;

/// Collects what a service is made of; [`start`](Self::start) checks it and sets it going.
#[must_use = "nothing runs until `start` is called and awaited"]
pub struct Builder<S: Store> {
    store: S,
    service: Option<String>,
    config: RuntimeConfig,
    states: States,
    explicit: Vec<fn() -> Definition>,
    discovery: bool,
    publish_only: bool,
    expected: Option<usize>,
    intakes: Vec<Arc<dyn Transport>>,
    relays: Vec<Arc<dyn Transport>>,
    routes: BTreeMap<String, String>,
}

impl<S: Store> Builder<S> {
    /// A service on this store, with the defaults of [`RuntimeConfig`].
    pub fn new(store: S) -> Self {
        Self {
            store,
            service: None,
            config: RuntimeConfig::default(),
            states: States::default(),
            explicit: Vec::new(),
            discovery: true,
            publish_only: false,
            expected: None,
            intakes: Vec::new(),
            relays: Vec::new(),
            routes: BTreeMap::new(),
        }
    }

    /// Names the service. The schema belongs to the service of this name from the first start on.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// Gives handlers a value, taken with `State<T>`; one value for each type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Registers a handler by the name of its function, beside those that are discovered.
    pub fn register<H: Registered>(mut self) -> Self {
        self.explicit.push(H::definition);
        self
    }

    /// Uses the registered handlers only, not those that are linked into the program.
    pub fn without_discovery(mut self) -> Self {
        self.discovery = false;
        self
    }

    /// Allows a service without handlers.
    pub fn publish_only(mut self) -> Self {
        self.publish_only = true;
        self
    }

    /// Refuses to start with more or fewer handlers than this.
    pub fn expect_handlers(mut self, count: usize) -> Self {
        self.expected = Some(count);
        self
    }

    /// Receives from this transport and relays all events to it.
    pub fn transport(mut self, transport: impl Transport) -> Self {
        let transport: Arc<dyn Transport> = Arc::new(transport);
        self.intakes.push(Arc::clone(&transport));
        self.relays.push(transport);
        self
    }

    /// Receives from this transport, but relays nothing to it.
    pub fn intake(mut self, transport: impl Transport) -> Self {
        self.intakes.push(Arc::new(transport));
        self
    }

    /// Sends this command to an outbox destination of your choice: a transport's name, or the
    /// service's own.
    pub fn route<C: Command>(mut self, destination: impl Into<String>) -> Self {
        self.routes.insert(C::NAME.to_owned(), destination.into());
        self
    }

    /// Replaces all settings.
    pub fn config(mut self, config: RuntimeConfig) -> Self {
        self.config = config;
        self
    }

    /// Changes single settings.
    ///
    /// ```ignore
    /// builder.configure(|config| config.idle_poll = Duration::from_millis(200))
    /// ```
    pub fn configure(mut self, change: impl FnOnce(&mut RuntimeConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Messages worked on at once.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.config.concurrency = Some(messages);
        self
    }

    /// Attempts before the dead letters, for handlers that do not say.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.config.max_attempts = attempts;
        self
    }

    /// Waits between attempts, for handlers that do not say.
    pub fn backoff(mut self, shortest: Duration, longest: Duration) -> Self {
        self.config.backoff = Backoff::new(shortest, longest);
        self
    }

    /// The circuit breaker of all handlers; `None` turns it off.
    pub fn breaker(mut self, policy: Option<BreakerPolicy>) -> Self {
        self.config.breaker = policy;
        self
    }

    /// Checks everything, writes the subscriptions, and sets the service going.
    ///
    /// # Errors
    /// All faults at once, those of the schema among them; a schema that alone is at fault is
    /// [`StartError::Store`]. Then what a transport refuses. Nothing has been taken from any
    /// transport by then.
    pub async fn start(self) -> Result<App<S>, StartError> {
        let connections = self.store.connection_limit();
        let service = self.service.clone().unwrap_or_default();
        let handlers = match self.checked(&service, connections) {
            Ok(handlers) => handlers,
            Err(mut faults) => {
                if let Err(error) = self.store.check_setup(&service).await {
                    faults.push(StartFault::Store(error_chain(&error)));
                }
                return Err(StartError::Faults(faults));
            }
        };
        let handlers = Arc::new(handlers);
        log_handlers(&handlers);
        let instance = Instance {
            id: Uuid::now_v7(),
            host: host_name(),
            service,
        };
        self.store
            .register(&instance, &handlers.subscriptions())
            .await?;
        let intake = intake_of(&instance.service, &handlers);
        for transport in self.intakes.iter().chain(&self.relays) {
            transport.start(&intake).await?;
        }
        let routing = self.routing(instance.service.clone());
        let states = Arc::new(self.states);
        let dispatcher = Dispatcher::new(DispatcherParts {
            store: self.store.clone(),
            routing,
            message_limit: self.config.message_limit,
            handlers: Arc::clone(&handlers),
            states: Arc::clone(&states),
            relay_hint: Arc::new(RelayHint::default()),
            execute_wait: self.config.execute_wait,
        });
        let (phase, stop) = Stop::new();
        let (finished, completions) = mpsc::channel(UNWRITTEN);
        let shared = Shared::new(SharedParts {
            store: self.store,
            instance,
            config: self.config,
            handlers,
            states,
            dispatcher,
            stop,
            finished,
        });
        Ok(App::run(
            shared,
            phase,
            completions,
            self.intakes,
            self.relays,
        ))
    }

    fn checked(
        &self,
        service: &str,
        connections: Option<usize>,
    ) -> Result<Handlers<S>, Vec<StartFault>> {
        let mut faults = self.config.faults(connections);
        if let Some(fault) = crate::name_fault(service) {
            faults.push(StartFault::Setting(format!(
                "the service name {fault}; name it with `.service(\"orders\")`"
            )));
        }
        let routing = self.routing(service.to_owned());
        faults.extend(routing.faults().into_iter().map(StartFault::Setting));
        let mut definitions: Vec<_> = self.explicit.iter().map(|define| define()).collect();
        if self.discovery {
            definitions.extend(discovered());
        }
        let definitions = without_repeats(definitions);
        self.count(&definitions, &mut faults);
        match Handlers::check(definitions, &self.states, &self.config, connections) {
            Ok(handlers) if faults.is_empty() => Ok(handlers),
            Ok(_) => Err(faults),
            Err(found) => {
                faults.extend(found);
                Err(faults)
            }
        }
    }

    fn routing(&self, service: String) -> Routing {
        let names = self.relays.iter().map(|relay| relay.name().to_owned());
        Routing {
            service,
            transports: names.collect(),
            routes: self.routes.clone(),
        }
    }

    fn count(&self, handlers: &[Definition], faults: &mut Vec<StartFault>) {
        if handlers.is_empty() && !self.publish_only {
            faults.push(StartFault::NoHandlers);
        }
        if let Some(expected) = self.expected
            && handlers.len() != expected
        {
            let names: Vec<_> = handlers.iter().map(|handler| handler.spec.name).collect();
            faults.push(StartFault::HandlerCount {
                expected,
                found: handlers.len(),
                names: names.join(", "),
            });
        }
    }
}

fn log_handlers<S: Store>(handlers: &Handlers<S>) {
    for handler in handlers.iter() {
        let spec = &handler.spec;
        tracing::info!(
            handler = spec.name,
            message = spec.message,
            lane = spec.lane(),
            function = spec.path,
            at = place(spec),
            "registered"
        );
    }
}

fn intake_of<S: Store>(service: &str, handlers: &Handlers<S>) -> Intake {
    let mut intake = Intake {
        service: service.to_owned(),
        ..Intake::default()
    };
    for handler in handlers.iter() {
        let names = if handler.spec.kind.is_command() {
            &mut intake.commands
        } else {
            &mut intake.events
        };
        names.extend(handler.spec.message_types().map(str::to_owned));
    }
    for names in [&mut intake.events, &mut intake.commands] {
        names.sort();
        names.dedup();
    }
    intake
}

/// Where the process runs, as far as the environment says it.
fn host_name() -> String {
    let host = std::env::var("HOSTNAME").ok().or_else(|| {
        std::fs::read_to_string("/etc/hostname")
            .ok()
            .map(|name| name.trim().to_owned())
    });
    let host = host
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{host}:{}", std::process::id())
}
