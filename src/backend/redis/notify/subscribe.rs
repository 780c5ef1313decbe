//! Begins and ends the subscriptions to channels.

use futures_util::future::try_join_all;

use super::pub_sub::ask;
use super::shared::Shared;
use super::subscription::Subscription;
use crate::backend::redis::command::{Cause, CommandError, unavailable};
use crate::backend::redis::connection::Messages;
use crate::backend::{BackendError, BackendErrorKind};

/// The subscriptions that a server did not end.
#[derive(Default)]
pub(super) struct Unended {
    pub(super) subscriptions: Vec<Subscription>,
    pub(super) rejection: Option<BackendError>,
}

impl Shared {
    /// Subscribes to channels. Returns the rejection of one of them, if the server rejected any. A rejected
    /// channel stays unconfirmed and unwanted, and affects no other.
    pub(super) async fn subscribe(
        &self,
        messages: &Messages,
        mut subscriptions: Vec<Subscription>,
    ) -> Result<Option<BackendError>, BackendError> {
        let replies = self.commands(messages, &subscriptions, true);
        let mut replies = replies.await?.into_iter();
        let mut rejection = None;
        let (mut moved, mut is_misled) = (false, false);
        let outage = &self.outage;
        subscriptions.retain(|_| match replies.next().flatten() {
            None => true,
            // The channel becomes wanted again when the cluster has a new map.
            Some(CommandError::Elsewhere { address, .. }) => {
                let mut server = self.server.iter();
                is_misled |= server.any(|it| it.is_named_by(&address));
                moved = true;
                false
            }
            Some(error) => {
                moved |= error.is_topological();
                let error = BackendError::from(error);
                // Another node may have the channel soon.
                match error.kind() {
                    BackendErrorKind::Unavailable => outage.begin(&error),
                    _ => outage.begin_for_some(&error),
                }
                rejection = Some(error);
                false
            }
        });
        self.topics.lock().confirm(&subscriptions);
        if moved {
            self.report_moved();
        }
        if is_misled {
            messages.visit.misled();
            return Err(unavailable(Cause::NotPrimary));
        }
        Ok(rejection)
    }

    /// Ends subscriptions. Returns those that the server rejected to end, and one of its rejections.
    pub(super) async fn unsubscribe(
        &self,
        messages: &Messages,
        subscriptions: &[Subscription],
    ) -> Result<Unended, BackendError> {
        let replies = self.commands(messages, subscriptions, false).await?;
        let mut unended = Unended::default();
        for (subscription, rejection) in subscriptions.iter().zip(replies) {
            match rejection {
                None => {}
                // A node ends the sharded subscriptions of a slot that it no longer serves.
                Some(CommandError::Elsewhere { .. }) => {}
                Some(rejection) if rejection.is_topological() => {}
                Some(rejection) => {
                    unended.subscriptions.push(subscription.clone());
                    unended.rejection = Some(rejection.into());
                }
            }
        }
        Ok(unended)
    }

    /// Begins or ends subscriptions concurrently, and returns the rejection of each one, if any.
    async fn commands(
        &self,
        messages: &Messages,
        subscriptions: &[Subscription],
        begin: bool,
    ) -> Result<Vec<Option<CommandError>>, BackendError> {
        let replies = subscriptions.iter().map(|subscription| async move {
            let mut names = subscription.names();
            if !begin {
                names.reverse();
            }
            // One command per name: the replies to a command about several names are not counted.
            let commands = self.kinds.iter().flat_map(|&kind| {
                let command = move |name: &String| match begin {
                    true => kind.subscribe(name),
                    false => kind.unsubscribe(name),
                };
                names.iter().map(command)
            });
            let replies = commands.map(|command| async move {
                match ask(&messages.connection, &command).await {
                    Ok(()) => Ok(None),
                    Err(error) if error.is_rejection() => Ok(Some(error)),
                    Err(error) => Err(BackendError::from(error)),
                }
            });
            let rejections = try_join_all(replies).await?;
            Ok(rejections.into_iter().flatten().next())
        });
        self.replied(try_join_all(replies)).await
    }
}
