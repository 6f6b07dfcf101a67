//! Modules and types that are named like a handler, and handlers that are imported elsewhere.

use serde::{Deserialize, Serialize};
use whizbang::{Event, handler};

#[derive(Serialize, Deserialize, Event)]
#[message(name = "collisions.counted")]
pub(crate) struct Counted {
    pub(crate) count: u32,
}

/// The details of the handler below.
mod reserve {
    pub(super) fn enough(count: u32) -> bool {
        count > 0
    }
}

#[handler]
async fn reserve(event: Counted) -> Result<(), String> {
    if reserve::enough(event.count) {
        Ok(())
    } else {
        Err("none".to_owned())
    }
}

#[expect(non_camel_case_types, reason = "named like the handler on purpose")]
struct ship {
    count: u32,
}

#[handler]
async fn ship(event: Counted) -> Result<(), String> {
    let parcel = ship { count: event.count };
    Err(format!("{} parcels", parcel.count))
}

/// A module for one handler, which is re-exported as people do.
mod bill {
    use whizbang::handler;

    #[handler]
    pub(crate) async fn bill(event: super::Counted) -> Result<(), String> {
        Err(format!("{} bills", event.count))
    }
}
pub(crate) use bill::*;

mod elsewhere {
    use super::Counted;
    // Both the function and what stands beside it.
    use super::shapes_of_import::mail;

    #[tokio::test]
    async fn an_imported_handler_is_called_and_registered() {
        use whizbang::handler::Registered;
        assert_eq!(mail(Counted { count: 1 }).await, Err("1 mails".to_owned()));
        assert_eq!(mail::definition().spec.name, "mail");
    }
}

mod shapes_of_import {
    use whizbang::handler;

    #[handler]
    pub(crate) async fn mail(event: super::Counted) -> Result<(), String> {
        Err(format!("{} mails", event.count))
    }
}

async fn with_a_nested_handler(count: u32) -> (Result<(), String>, Result<(), String>) {
    /// Beside a module of its name, inside a function.
    mod count_up {
        pub(super) const STEP: u32 = 1;
    }
    #[handler]
    async fn count_up(event: Counted) -> Result<(), String> {
        Err(format!("{}", event.count + count_up::STEP))
    }
    #[handler(name = "nested_ship")]
    async fn ship(event: Counted) -> Result<(), String> {
        Err(format!("{} nested parcels", event.count))
    }
    (
        count_up(Counted { count }).await,
        ship(Counted { count }).await,
    )
}

#[tokio::test]
async fn each_name_means_what_it_says() {
    assert_eq!(reserve(Counted { count: 1 }).await, Ok(()));
    assert_eq!(reserve(Counted { count: 0 }).await, Err("none".to_owned()));
    let shipped = ship(Counted { count: 2 }).await;
    assert_eq!(shipped, Err("2 parcels".to_owned()));
    let billed = bill(Counted { count: 3 }).await;
    assert_eq!(billed, Err("3 bills".to_owned()));
    let (counted, nested) = with_a_nested_handler(4).await;
    assert_eq!(counted, Err("5".to_owned()));
    assert_eq!(nested, Err("4 nested parcels".to_owned()));
}

#[test]
fn all_of_them_are_discovered() {
    let mut names: Vec<_> = whizbang::registry::discovered()
        .iter()
        .filter(|definition| definition.spec.message == "collisions.counted")
        .map(|definition| definition.spec.name)
        .collect();
    names.sort_unstable();
    let expected = ["bill", "count_up", "mail", "nested_ship", "reserve", "ship"];
    assert_eq!(names, expected);
}
