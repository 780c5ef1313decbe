//! The events of a plan.

use std::sync::Arc;

use super::{Simulation, ms};
use crate::environment::{OUTSIDE, Weather};
use crate::plan::What;

impl Simulation {
    pub(super) fn happen(&mut self, what: What) {
        let environment = Arc::clone(&self.environment);
        environment.trace(|| format!("EVENT {what:?}"));
        let (awake, now) = (environment.awake(), environment.now());
        match what {
            What::Idle {
                manager,
                runtime,
                pause,
            } => environment
                .runtime(manager, runtime)
                .pause(awake + ms(pause)),
            What::Stop { manager, runtime } => environment.runtime(manager, runtime).stop(),
            What::End {
                manager,
                runtime,
                outside,
            } => {
                environment.set_current(manager, runtime);
                environment.runtime(manager, runtime).end(outside);
                environment.set_current(OUTSIDE, OUTSIDE);
            }
            What::Kill { manager } => {
                environment.seen.lock().unwrap().kill(manager);
                environment.store.lock().unwrap().unsubscribe(manager);
                let runtimes = environment.runtimes.lock().unwrap()[manager].clone();
                for runtime in runtimes {
                    self.graves.extend(runtime.kill());
                }
            }
            What::Suspend(pause) => {
                environment.suspend(ms(pause));
                environment.seen.lock().unwrap().resumed = environment.now();
            }
            What::StepForward(step) => environment.store.lock().unwrap().step(ms(step), now),
            What::StepBack(step) => environment.store.lock().unwrap().step(-ms(step), now),
            What::EmptyRestart => {
                environment.store.lock().unwrap().restart(now);
                environment.seen.lock().unwrap().passed_over.clear();
            }
            What::Recovery { manager } => environment.store.lock().unwrap().recovered(manager),
            What::NoHints { pause } => environment.drop_hints_until(awake + ms(pause)),
            What::Trouble {
                manager,
                key,
                command,
                pause,
                share,
                kind,
            } => environment.add_weather(Weather {
                from: awake,
                until: awake + ms(pause),
                manager,
                key,
                command,
                share,
                kind,
            }),
        }
    }
}
