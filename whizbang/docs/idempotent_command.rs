use serde::{Deserialize, Serialize};
use uuid::Uuid;
use whizbang::{Command, Event, idempotent_command};
# type HandlerContext<'c> = whizbang::Context<'c, whizbang::testing::MemoryStore>;

#[derive(Serialize, Deserialize, Command)]
#[message(name = "orders.place_order", reply = OrderReceipt)]
struct PlaceOrder {
    order_id: Uuid,
}

#[derive(Serialize, Deserialize, Event)]
#[message(name = "orders.order_placed", stream = order_id)]
struct OrderPlaced {
    order_id: Uuid,
}

#[derive(Serialize, Deserialize)]
struct OrderReceipt {
    order_id: Uuid,
}

#[idempotent_command(key = order_id)]
async fn place_order(
    command: PlaceOrder,
    cx: &mut HandlerContext<'_>,
) -> Result<OrderReceipt, whizbang::PublishError> {
    let order_id = command.order_id;
    cx.publish(&OrderPlaced { order_id }).await?;
    Ok(OrderReceipt { order_id })
}
