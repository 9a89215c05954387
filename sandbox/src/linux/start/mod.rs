//! Starts a sandbox step by step. All checks come before the first effect.

mod checks;
mod conversation;
mod package;

use super::handle::{Inside, LayerState, Sandbox, Timings};
use super::limits::Limiter;
use super::{doing, stages};
use crate::{Error, Launch, Layer, Network, SandboxPlan};
use checks::Checked;
use conversation::{wait_for_execution, wait_for_record};
use package::Package;
use sandbox_inside::linux::channel;
use sandbox_inside::protocol::{GO, Record};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::Instant;

impl Sandbox {
    pub(crate) fn start(launch: Launch) -> Result<Sandbox, Error> {
        let begin = Instant::now();
        let checked = Checked::new(&launch)?;
        let timeout = launch.ready_timeout;
        let limits = launch.plan.policy.limits.clone();
        let requirement = launch.plan.policy.layers.requirement(Layer::Limits);
        let mut limiter = Limiter::prepare(&limits, requirement, launch.cgroup.as_deref())?;
        let layers = expected_layers(&launch.plan, checked.become_user);
        let program = launch.plan.program.path.display().to_string();
        let mut package = Package::build(launch, &checked, limiter.procs_file()?)?;

        let words: &[&str] = if package.pass_on_descriptors { &["guard", "pass-on"] } else { &["guard"] };
        let spawned = Instant::now();
        let (guard, socket) = stages::start(words)?;
        // From here on, dropping `inside` kills everything.
        let mut inside = Inside::new(guard, socket)?;
        package.send(inside.socket())?;

        let deadline = spawned + timeout;
        let ready = wait_for_record(&package, deadline, timeout, &program)?;
        let (Record::Ready { missing }, Some(pid)) = (ready.record, ready.sender) else {
            return Err(doing("receive from stage 2")(std::io::ErrorKind::InvalidData.into()));
        };
        inside.record_program(pid)?;
        limiter.move_into_scope(&inside.pids())?;
        let confined = Instant::now();

        channel::send(package.status.as_fd(), &[GO], &[]).map_err(doing("send GO to stage 2"))?;
        wait_for_execution(&package, deadline, timeout, &program)?;
        let executed = Instant::now();

        let mut layers = layers;
        for (layer, why) in missing.into_iter().chain(limiter.missing()) {
            set_state(&mut layers, layer, LayerState::Missing(why));
        }
        let timings =
            Timings { prepare: spawned - begin, confine: confined - spawned, execute: executed - confined };
        let listener = ready.descriptors.into_iter().next().map(TcpListener::from);
        Ok(Sandbox::new(inside, layers, limiter, timings, listener))
    }
}

/// The state of each layer if nothing is missing.
fn expected_layers(plan: &SandboxPlan, become_user: Option<u32>) -> Vec<(Layer, LayerState)> {
    Layer::ALL
        .into_iter()
        .map(|layer| {
            let on = plan.policy.layers.wanted(layer)
                && match layer {
                    Layer::Identity => become_user.is_some(),
                    Layer::Network => plan.policy.network != Network::Host,
                    _ => true,
                };
            (layer, if on { LayerState::On } else { LayerState::Off })
        })
        .collect()
}

fn set_state(layers: &mut [(Layer, LayerState)], layer: Layer, state: LayerState) {
    for entry in layers.iter_mut().filter(|(name, _)| *name == layer) {
        entry.1 = state.clone();
    }
}
