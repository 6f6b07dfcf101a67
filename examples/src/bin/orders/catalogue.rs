//! What the shop sells. The database is filled from it and the ledger is computed from it.

/// A kind of goods.
pub(crate) struct Item {
    pub(crate) sku: &'static str,
    pub(crate) cents: i64,
    pub(crate) in_stock: i64,
}

/// Customers whose card is always declined.
pub(crate) const DECLINED: [&str; 3] = ["customer-0013", "customer-0404", "customer-0666"];

/// Goods that the warehouse fails to handle every time: its orders end in the dead letters.
pub(crate) const ANVIL: &str = "anvil";

/// Most pieces of one order.
pub(crate) const MAX_QUANTITY: u32 = 999;

const fn item(sku: &'static str, cents: i64, in_stock: i64) -> Item {
    Item {
        sku,
        cents,
        in_stock,
    }
}

pub(crate) const ITEMS: [Item; 26] = [
    item("tea-assam", 690, 5_000),
    item("tea-ceylon", 645, 5_000),
    item("tea-darjeeling", 1_290, 5_000),
    item("tea-keemun", 1_105, 5_000),
    item("tea-lapsang", 875, 5_000),
    item("tea-sencha", 999, 5_000),
    item("tea-matcha", 2_449, 5_000),
    item("tea-oolong", 1_333, 5_000),
    // Always sold out.
    item("tea-yeti", 9_900, 0),
    item("coffee-java", 799, 5_000),
    item("coffee-kenya", 1_049, 5_000),
    item("coffee-huila", 1_151, 5_000),
    item("coffee-yirga", 1_277, 5_000),
    item("cocoa-dark", 555, 5_000),
    item("cocoa-milk", 501, 5_000),
    item("honey-lime", 777, 5_000),
    item("honey-heath", 883, 5_000),
    item("biscuit-oat", 349, 5_000),
    item("biscuit-ginger", 367, 5_000),
    item("jam-quince", 463, 5_000),
    item("jam-plum", 421, 5_000),
    item("mug-blue", 1_195, 5_000),
    item("mug-white", 1_095, 5_000),
    item("kettle-steel", 4_999, 5_000),
    item("strainer-fine", 289, 5_000),
    item(ANVIL, 19_900, 10),
];

/// The item of this name.
pub(crate) fn find(sku: &str) -> Option<&'static Item> {
    ITEMS.iter().find(|item| item.sku == sku)
}
