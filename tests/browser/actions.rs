//! What the tests do on the page, and wait for there.

use fantoccini::key::Key;

use crate::driver::Browser;

impl Browser {
    /// Waits until the page lists so many keys.
    pub(crate) async fn until_listed(&self, keys: usize) {
        let rows = "document.querySelectorAll('#keys tbody tr').length";
        self.until(&format!("{rows} === {keys}")).await;
    }

    /// Waits until the details of a key are open and no longer fade in. A transparent element has no visible text.
    pub(crate) async fn until_details_open(&self) {
        let detail = "document.getElementById('detail')";
        let open = format!("{detail}.open && {detail}.getAnimations().length === 0");
        self.until(&open).await;
    }

    /// Opens the details of the first key with the mouse.
    pub(crate) async fn click_first_key(&self) {
        let click = "document.querySelector('#keys td button').click()";
        self.run(click).await.unwrap();
        self.until_details_open().await;
    }

    /// Opens the details of the first key with the keyboard.
    pub(crate) async fn enter_first_key(&self) {
        self.tab_to("#keys td button").await;
        self.press(Key::Enter).await;
        self.until_details_open().await;
    }
}
