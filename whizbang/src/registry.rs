//! Which handlers a program has.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{
    Backoff, RuntimeConfig,
    error::StartFault,
    handler::{
        Call, CommandSpec, Definition, HandlerSpec, OnDead, Registered, Requirement, States,
    },
    message::name_fault,
    store::{Store, Subscription},
};

/// A registration that the attributes submit at link time.
pub struct Registration(pub fn() -> Definition);

impl Registration {
    /// That of this handler.
    pub const fn of<H: Registered>() -> Self {
        Self(H::definition)
    }
}

inventory::collect!(Registration);

/// All handlers that are linked into this program, in no particular order.
pub fn discovered() -> Vec<Definition> {
    inventory::iter::<Registration>
        .into_iter()
        .map(|registration| (registration.0)())
        .collect()
}

/// What a handler's options come to, with the runtime's defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Attempts before the dead letters.
    pub max_attempts: u32,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// Time for one attempt.
    pub timeout: std::time::Duration,
    /// Messages at once in this instance; `None`: as many as the runtime has.
    pub concurrency: Option<usize>,
    /// What a dead letter means for its stream.
    pub on_dead: OnDead,
}

/// A handler, checked and ready to run on one store.
pub struct Handler<S: Store> {
    /// Compile-time facts.
    pub spec: HandlerSpec,
    /// Its function.
    pub call: Call<S>,
    /// Set for idempotent commands.
    pub command: Option<CommandSpec>,
    /// Options with defaults filled in.
    pub policy: Policy,
}

impl<S: Store> std::fmt::Debug for Handler<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler")
            .field("spec", &self.spec)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// The handlers of a service.
#[derive(Debug)]
pub struct Handlers<S: Store> {
    by_name: HashMap<&'static str, Arc<Handler<S>>>,
    sorted: Vec<Arc<Handler<S>>>,
}

impl<S: Store> Handlers<S> {
    /// Checks definitions against each other, the states and the settings.
    ///
    /// # Errors
    /// Every fault found, not just the first.
    pub fn check(
        definitions: Vec<Definition>,
        states: &States,
        config: &RuntimeConfig,
        connections: Option<usize>,
    ) -> Result<Self, Vec<StartFault>> {
        let definitions = without_repeats(definitions);
        let mut faults = Vec::new();
        check_names(&definitions, &mut faults);
        check_messages(&definitions, &mut faults);
        check_scopes(&definitions, &mut faults);
        let mut sorted = Vec::new();
        for definition in definitions {
            check_needs(&definition, states, connections, &mut faults);
            match definition.call.resolve::<S>() {
                Ok(call) => sorted.push(Arc::new(Handler {
                    spec: definition.spec,
                    call,
                    command: definition.command,
                    policy: policy(&definition.spec, config),
                })),
                Err(store) => faults.push(StartFault::WrongStore {
                    handler: definition.spec.name.to_owned(),
                    place: place(&definition.spec),
                    store,
                }),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let by_name = sorted
            .iter()
            .map(|handler| (handler.spec.name, Arc::clone(handler)))
            .collect();
        Ok(Self { by_name, sorted })
    }

    /// The handler of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Handler<S>>> {
        self.by_name.get(name)
    }

    /// All handlers, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Handler<S>>> {
        self.sorted.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The handler that accepts this command.
    pub fn for_command(&self, message_type: &str) -> Option<&Arc<Handler<S>>> {
        self.sorted.iter().find(|handler| {
            handler.spec.kind.is_command()
                && handler
                    .spec
                    .message_types()
                    .any(|name| name == message_type)
        })
    }

    /// What the service listens to, one line for each handler and wire name.
    pub fn subscriptions(&self) -> Vec<Subscription> {
        let mut lines: Vec<_> = self
            .sorted
            .iter()
            .flat_map(|handler| {
                handler
                    .spec
                    .message_types()
                    .map(|message_type| Subscription {
                        handler: handler.spec.name.to_owned(),
                        message_type: message_type.to_owned(),
                        lane: handler.spec.lane().to_owned(),
                    })
            })
            .collect();
        lines.sort();
        lines.dedup();
        lines
    }
}

/// Where a handler stands in the source.
pub fn place(spec: &HandlerSpec) -> String {
    format!("{}:{}", spec.file, spec.line)
}

/// The same function at the same place is the same handler, met twice through a dependency cycle
/// of tests. A macro can put several functions at one place, so the path counts as well.
pub(crate) fn without_repeats(mut definitions: Vec<Definition>) -> Vec<Definition> {
    fn identity(definition: &Definition) -> impl Ord + use<> {
        let spec = &definition.spec;
        (spec.name, spec.file, spec.line, spec.path, spec.message)
    }
    definitions.sort_by_key(identity);
    definitions.dedup_by(|one, other| identity(one) == identity(other));
    definitions
}

fn check_names(definitions: &[Definition], faults: &mut Vec<StartFault>) {
    for pair in definitions.windows(2) {
        let [first, second] = pair else { continue };
        if first.spec.name == second.spec.name {
            faults.push(StartFault::SameName {
                name: first.spec.name.to_owned(),
                first: place(&first.spec),
                second: place(&second.spec),
            });
        }
    }
    for definition in definitions {
        let spec = &definition.spec;
        let scope = definition.command.map(|command| command.scope);
        let names = spec.message_types().chain([spec.name, spec.lane()]);
        let names = names.chain(scope);
        for name in names {
            if let Some(fault) = name_fault(name) {
                faults.push(StartFault::BadName {
                    name: name.to_owned(),
                    place: place(spec),
                    fault,
                });
            }
        }
    }
}

fn check_messages(definitions: &[Definition], faults: &mut Vec<StartFault>) {
    let mut first_of: HashMap<&str, &Definition> = HashMap::new();
    for definition in definitions {
        for name in definition.spec.message_types() {
            let Some(first) = first_of.get(name) else {
                first_of.insert(name, definition);
                continue;
            };
            let (one, other) = (&first.spec, &definition.spec);
            if (one.message_type_id)() != (other.message_type_id)() {
                faults.push(StartFault::SameWireName {
                    name: name.to_owned(),
                    first: place(one),
                    second: place(other),
                });
            } else if other.kind.is_command() && one.name != other.name {
                faults.push(StartFault::TwoForCommand {
                    command: name.to_owned(),
                    first: place(one),
                    second: place(other),
                });
            }
        }
    }
}

/// Two commands in one scope would be given each other's replies.
fn check_scopes(definitions: &[Definition], faults: &mut Vec<StartFault>) {
    let mut first_of: HashMap<&str, &HandlerSpec> = HashMap::new();
    for definition in definitions {
        let Some(command) = &definition.command else {
            continue;
        };
        let spec = &definition.spec;
        match first_of.get(command.scope) {
            Some(first) if (first.message_type_id)() != (spec.message_type_id)() => {
                faults.push(StartFault::SameScope {
                    scope: command.scope.to_owned(),
                    first: place(first),
                    second: place(spec),
                });
            }
            Some(_) => {}
            None => drop(first_of.insert(command.scope, spec)),
        }
    }
}

fn check_needs(
    definition: &Definition,
    states: &States,
    connections: Option<usize>,
    faults: &mut Vec<StartFault>,
) {
    let spec = &definition.spec;
    for requirement in &definition.requirements {
        if let Requirement::State { id, name } = requirement
            && !states.contains(*id)
        {
            faults.push(StartFault::MissingState {
                handler: spec.name.to_owned(),
                place: place(spec),
                state: name,
            });
        }
    }
    if let (Some(wanted), Some(limit)) = (spec.options.concurrency, connections)
        && wanted > limit
    {
        faults.push(StartFault::HandlerConcurrency {
            handler: spec.name.to_owned(),
            place: place(spec),
            wanted,
            limit,
        });
    }
}

fn policy(spec: &HandlerSpec, config: &RuntimeConfig) -> Policy {
    let options = &spec.options;
    Policy {
        max_attempts: options.max_attempts.unwrap_or(config.max_attempts),
        backoff: options
            .backoff
            .map_or(config.backoff, |(shortest, longest)| {
                Backoff::new(shortest, longest)
            }),
        timeout: options.timeout.unwrap_or(config.handler_timeout),
        concurrency: options.concurrency,
        on_dead: options.on_dead,
    }
}
