//! Draws what happens to runtimes, to the machine and to the store.

use super::Draw;
use crate::plan::{Command, Ms, Outsider, Plan, Trouble, What};

impl Draw<'_> {
    pub(super) fn outsider(&mut self, keys: usize, length: Ms, busiest: Ms) -> Outsider {
        Outsider {
            key: self.random.usize(..keys),
            start: self.span(1, length),
            holds: self.random.u32(1..20),
            hold: self.span(1, 300),
            pause: self.random.u64(0..=busiest),
        }
    }

    /// `None` if its class is off.
    pub(super) fn event(&mut self, plan: &Plan, kind: u8) -> Option<What> {
        let manager = self.random.usize(..plan.managers.len());
        let runtime = self.random.usize(..plan.managers[manager].runtimes);
        let watchdog = plan.managers[manager].watchdog;
        let pause = self.span(5, 4 * watchdog.max(500));
        let (class, what) = match kind {
            0..4 => (
                "idle",
                What::Idle {
                    manager,
                    runtime,
                    pause,
                },
            ),
            4 => ("stop", What::Stop { manager, runtime }),
            5 => {
                let outside = self.random.bool();
                let end = What::End {
                    manager,
                    runtime,
                    outside,
                };
                ("end", end)
            }
            6 => ("kill", What::Kill { manager }),
            7 | 8 => ("suspend", What::Suspend(pause)),
            9 => ("forward", What::StepForward(pause)),
            10 => ("back", What::StepBack(pause.min(2_000))),
            11 => ("restart", What::EmptyRestart),
            12 => ("recovery", What::Recovery { manager }),
            13 => ("hints", What::NoHints { pause }),
            _ => return self.trouble(plan, pause),
        };
        self.weights.has(class).then_some(what)
    }

    fn trouble(&mut self, plan: &Plan, pause: Ms) -> Option<What> {
        let (class, kind) = match self.random.u8(..10) {
            0 => ("lost", Trouble::RequestLost),
            1 | 2 => ("lost", Trouble::ReplyLost),
            3 => ("late", Trouble::ReplyLate(self.span(10, 2_000))),
            4 => ("refused", Trouble::Refused),
            5 => ("hung", Trouble::Hung),
            6 | 7 => ("twice", self.twice()),
            _ => ("stopped", Trouble::Stopped),
        };
        if kind == Trouble::Stopped {
            let what = What::Trouble {
                manager: None,
                key: None,
                command: None,
                // Mostly longer than a lease, so that commands take effect after it.
                pause: self.span(1_000, 12_000),
                share: 100,
                kind,
            };
            return self.weights.has(class).then_some(what);
        }
        let one = self.random.bool();
        let manager = self.random.usize(..plan.managers.len());
        let few = self.random.u8(..3) == 0;
        let key = self.random.usize(..plan.keys);
        let commands = [
            None,
            None,
            None,
            Some(Command::Acquire),
            Some(Command::Renew),
            Some(Command::Release),
            Some(Command::Pass),
            Some(Command::Contend),
            Some(Command::Leave),
            Some(Command::Downgrade),
        ];
        let what = What::Trouble {
            manager: one.then_some(manager),
            key: few.then_some(key),
            command: self.pick(&commands),
            pause,
            share: self.pick(&[20, 50, 100]),
            kind,
        };
        self.weights.has(class).then_some(what)
    }

    fn twice(&mut self) -> Trouble {
        let at_once = self.random.bool();
        Trouble::Twice {
            after: if at_once { 0 } else { self.span(1, 1_000) },
            first: self.random.bool(),
        }
    }
}
