//! The bare pair with a pooled connection per command, which is the usual way to use deadpool-redis.

use std::sync::Arc;

use deadpool_redis::{Manager, Pool};

use super::bare::{Held, Scripts, Token, connection_config, pause};
use crate::work::{Failure, Locks};

const CONNECTIONS: usize = 64;

#[derive(Clone)]
pub(crate) struct Checkout {
    pool: Pool,
    scripts: Arc<Scripts>,
}

pub(crate) fn connect(url: &str) -> Result<Checkout, Failure> {
    let manager = Manager::new_with_config(url, connection_config())?;
    let pool = Pool::builder(manager).max_size(CONNECTIONS).build()?;
    let scripts = Arc::new(Scripts::new(Token::None));
    Ok(Checkout { pool, scripts })
}

impl Locks for Checkout {
    type Held = Held;

    async fn lock(&self, key: &str) -> Result<Held, Failure> {
        let wanted = self.scripts.want(key);
        while !self.try_lock(&wanted).await? {
            pause().await;
        }
        Ok(wanted)
    }

    async fn unlock(&self, held: Held) -> Result<(), Failure> {
        let mut connection = self.pool.get().await?;
        self.scripts.unlock(&mut connection, &held).await
    }
}

impl Checkout {
    /// The connection returns to the pool before the sleep.
    async fn try_lock(&self, wanted: &Held) -> Result<bool, Failure> {
        let mut connection = self.pool.get().await?;
        self.scripts.try_lock(&mut connection, wanted).await
    }
}
