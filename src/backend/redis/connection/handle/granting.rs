//! The link for a grant.

use std::sync::Arc;

use super::connection::Connection;
use crate::backend::redis::connection::Link;
use crate::backend::{BackendError, BackendErrorKind};

impl Connection {
    /// Returns the link for a grant, or an error if the address leads to several servers without a check. A new link
    /// probes it again from time to time: a proxy can be corrected while its connections stay open.
    ///
    /// The caller asks behind the dial, which probes.
    pub(crate) async fn granting(
        self: &Arc<Self>,
        mut link: Arc<Link>,
    ) -> Result<Arc<Link>, BackendError> {
        let spread = &self.connector.spread;
        if spread.found().is_some() && spread.is_due() {
            self.leave();
            link = self.await_link().await?;
        }
        let refused = |cause| BackendError::refused(BackendErrorKind::Misconfigured, cause);
        spread.found().map(refused).map_or(Ok(link), Err)
    }
}
