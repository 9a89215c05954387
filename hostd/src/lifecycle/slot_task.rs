//! One task per busy slot. It owns the slot's queue and runs one message at a time, to its end.
//!
//! Everything that changes a slot is a message to its task, so operations on one clone never overlap, and a caller that
//! disconnects changes nothing. An identical call joins the message that is queued or running: a create of the same
//! request, a destroy of the same clone. The task ends when its queue is empty.

use super::parts::Parts;
use super::planner::Repair;
use super::progress::{Listeners, ProgressSink};
use super::reap::Reaped;
use super::registry::RegistryState;
use crate::api::{
    CloneId, CreateParams, CreateResult, DestroyParams, DestroyResult, Flavor, ForceUnmountParams,
    ForceUnmountResult, ReapReason, RequestId, RpcError,
};
use crate::host::Host;
use crate::record::Record;
use crate::slot::{Slot, SlotNames};
use futures_util::FutureExt;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tracing::{Instrument, Span};

/// The right to change a slot and its record. Only the slot's task has it, and only while it runs a message.
#[derive(Debug)]
pub(super) struct SlotTurn(Slot);

impl SlotTurn {
    /// A turn is good for its own slot only; anything else is a defect.
    pub(super) fn check(&self, slot: Slot) {
        assert_eq!(self.0, slot, "a slot is changed by its own task only");
    }
}

/// What a slot's task is asked to do.
#[derive(Debug)]
pub(super) enum SlotMessage {
    /// Make the clone of this reserved record.
    Create { record: Box<Record> },
    /// Give this reserved member of the warm pool its owner. `bound` is the record it shall have.
    Bind { member: Box<Record>, bound: Box<Record>, flavor: Flavor },
    /// Renew the lease of the clone that this request made.
    Renew { params: Box<CreateParams>, uid: Option<u32>, lease: Duration },
    /// Make the member of the warm pool of this reserved record.
    MakeMember { record: Box<Record>, flavor: Flavor, template: String },
    /// Prove a member of the warm pool that an earlier process made.
    Adopt,
    /// Destroy the clone.
    Destroy { params: Box<DestroyParams>, operator: bool },
    /// Force the mounts of a clone that is being destroyed.
    ForceUnmount(Box<ForceUnmountParams>),
    /// Destroy the member of the warm pool, if it still is one.
    Drain { why: String },
    /// Destroy what is due in the slot, if it still is. `audited`: with audit lines of its own.
    Reap { reason: ReapReason, audited: bool },
    /// Repair something, if it still has to be.
    Repair(Repair),
    /// Remove the record of a clone whose quarantine is over.
    Release,
    /// Write the record again after a write failed or its file was lost.
    WriteRecord,
}

/// What a message leads to.
#[derive(Debug, Clone)]
pub(super) enum SlotReply {
    Created(Result<CreateOutcome, RpcError>),
    /// `None`: the slot holds no clone of the request any more.
    Renewed(Result<Option<Box<CreateResult>>, RpcError>),
    Destroyed(Result<DestroyResult, RpcError>),
    ForceUnmounted(Result<ForceUnmountResult, RpcError>),
    /// `None`: the slot was not free.
    MemberMade(Result<Option<SlotNames>, RpcError>),
    Reaped(Reaped),
    Done,
}

/// How a create fared in the slot it had reserved.
#[derive(Debug, Clone)]
pub(super) enum CreateOutcome {
    Clone(Box<CreateResult>),
    /// Something in the slot is not the clone's to remove.
    SlotNotFree(Slot, String),
    /// The member of the warm pool is broken; another one will do.
    MemberBroken,
}

/// Which messages are the same operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JoinKey {
    /// A request of one caller.
    Create(Option<u32>, RequestId),
    Destroy(CloneId),
}

impl SlotMessage {
    fn key(&self) -> Option<JoinKey> {
        let create = |uid: Option<u32>, request: &Option<RequestId>| {
            request.clone().map(|request| JoinKey::Create(uid, request))
        };
        match self {
            SlotMessage::Create { record } => create(record.owner_uid, &record.request_id),
            SlotMessage::Bind { bound, .. } => create(bound.owner_uid, &bound.request_id),
            SlotMessage::Renew { params, uid, .. } => Some(JoinKey::Create(*uid, params.request_id.clone())),
            SlotMessage::Destroy { params, .. } => Some(JoinKey::Destroy(params.clone_id.clone())),
            _ => None,
        }
    }

    /// Whether an identical message may wait for this one's result. Each renewal has parameters of its own.
    fn can_be_joined(&self) -> bool {
        !matches!(self, SlotMessage::Renew { .. })
    }

    /// Whether the sender waits until nothing is left.
    fn waits(&self) -> bool {
        match self {
            SlotMessage::Destroy { params, .. } => params.wait,
            _ => true,
        }
    }
}

/// All busy slots.
#[derive(Default)]
pub(super) struct SlotTasks {
    queues: Mutex<HashMap<Slot, SlotQueue>>,
    /// A slot is no longer busy.
    idle: Notify,
}

#[derive(Default)]
struct SlotQueue {
    /// Who waits for the message that is running.
    running: Option<Waiting>,
    pending: VecDeque<(SlotMessage, Waiting)>,
}

/// Everybody who waits for one message.
struct Waiting {
    key: Option<JoinKey>,
    listeners: Listeners,
    waiters: Vec<Waiter>,
    span: Span,
}

struct Waiter {
    /// Until nothing is left. False: until nothing in the clone can run any more.
    until_complete: bool,
    reply: oneshot::Sender<SlotReply>,
}

/// The reply to a message. An error means that the task panicked.
pub(super) type Reply = oneshot::Receiver<SlotReply>;

impl SlotTasks {
    fn lock(&self) -> MutexGuard<'_, HashMap<Slot, SlotQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The busy slots.
    pub(super) fn busy(&self) -> BTreeSet<Slot> {
        self.lock().keys().copied().collect()
    }

    pub(super) fn is_busy(&self, slot: Slot) -> bool {
        self.lock().contains_key(&slot)
    }

    /// Wait until a slot is not busy.
    pub(super) async fn until_idle(&self, slot: Slot) {
        loop {
            let idle = self.idle.notified();
            if !self.is_busy(slot) {
                return;
            }
            idle.await;
        }
    }

    /// Wait until no slot is busy.
    pub(super) async fn all_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.lock().is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Reply early to those who do not wait for the end of the message that is running in this slot.
    pub(super) fn reply_early(&self, slot: Slot, reply: &SlotReply) {
        let mut queues = self.lock();
        let Some(waiting) = queues.get_mut(&slot).and_then(|queue| queue.running.as_mut()) else { return };
        for waiter in waiting.waiters.extract_if(.., |waiter| !waiter.until_complete) {
            // A caller that disconnected is not waiting any more.
            let _ = waiter.reply.send(reply.clone());
        }
    }

    /// Put a message before all others of a slot whose task is running. Nobody waits for it.
    pub(super) fn send_next(&self, slot: Slot, message: SlotMessage) {
        if let Some(queue) = self.lock().get_mut(&slot) {
            let waiting = Waiting {
                key: None,
                listeners: Listeners::default(),
                waiters: Vec::new(),
                span: Span::none(),
            };
            queue.pending.push_front((message, waiting));
        }
    }
}

impl<H: Host> Parts<H> {
    /// Send a message to a slot's task.
    pub(super) fn send(
        self: &Arc<Self>,
        slot: Slot,
        message: SlotMessage,
        progress: Option<ProgressSink>,
    ) -> Reply {
        self.enqueue(&mut self.tasks.lock(), slot, message, progress)
    }

    /// Send a message to a slot that is not busy. `None`: it is busy.
    pub(super) fn send_if_idle(self: &Arc<Self>, slot: Slot, message: SlotMessage) -> Option<Reply> {
        let mut queues = self.tasks.lock();
        if queues.contains_key(&slot) {
            return None;
        }
        Some(self.enqueue(&mut queues, slot, message, None))
    }

    /// Reserve a slot and send its first message, atomically: `choose` gets the registry's state and the busy slots.
    pub(super) fn reserve<E>(
        self: &Arc<Self>,
        progress: Option<ProgressSink>,
        choose: impl FnOnce(&RegistryState, &dyn Fn(Slot) -> bool) -> Result<(Record, SlotMessage), E>,
    ) -> Result<Reply, E> {
        let mut queues = self.tasks.lock();
        let mut first_message = None;
        let busy = |slot: Slot| queues.contains_key(&slot);
        let reserved = self.registry.reserve(|state| {
            let (record, message) = choose(state, &busy)?;
            first_message = Some((record.slot, message));
            Ok(Some(record))
        });
        reserved?;
        let (slot, message) = first_message.expect("a reservation has its first message");
        Ok(self.enqueue(&mut queues, slot, message, progress))
    }

    fn enqueue(
        self: &Arc<Self>,
        queues: &mut HashMap<Slot, SlotQueue>,
        slot: Slot,
        message: SlotMessage,
        progress: Option<ProgressSink>,
    ) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let waiter = Waiter { until_complete: message.waits(), reply };
        let key = message.key();
        let idle = !queues.contains_key(&slot);
        let queue = queues.entry(slot).or_default();
        let joinable = queue
            .pending
            .iter_mut()
            .filter(|(pending, _)| pending.can_be_joined())
            .map(|(_, waiting)| waiting)
            .chain(queue.running.as_mut())
            .find(|waiting| key.is_some() && waiting.key == key);
        if let Some(waiting) = joinable {
            waiting.listeners.add(progress);
            waiting.waiters.push(waiter);
            return receiver;
        }
        let listeners = Listeners::default();
        listeners.add(progress);
        let waiting = Waiting { key, listeners, waiters: vec![waiter], span: Span::current() };
        queue.pending.push_back((message, waiting));
        if idle {
            tokio::spawn(self.clone().run_slot(slot));
        }
        receiver
    }

    /// Run the messages of a slot until there are none.
    async fn run_slot(self: Arc<Self>, slot: Slot) {
        while let Some((message, listeners, span)) = self.next_message(slot) {
            let worker = SlotWorker {
                names: self.slots.names(slot),
                turn: SlotTurn(slot),
                parts: self.clone(),
                listeners,
            };
            let result = AssertUnwindSafe(worker.run(message).instrument(span)).catch_unwind().await;
            let Ok(reply) = result else {
                tracing::error!(%slot, "an operation panicked; the reaper removes what it left");
                // Who waits in the queue is told by the end of its channel.
                self.tasks.lock().remove(&slot);
                self.tasks.idle.notify_waiters();
                return;
            };
            let waiting = self.tasks.lock().get_mut(&slot).and_then(|queue| queue.running.take());
            for waiter in waiting.into_iter().flat_map(|waiting| waiting.waiters) {
                let _ = waiter.reply.send(reply.clone());
            }
        }
        self.tasks.idle.notify_waiters();
    }

    /// The next message of a slot, which is running from now on. `None`: there is none, and the slot is not busy any more.
    fn next_message(&self, slot: Slot) -> Option<(SlotMessage, Listeners, Span)> {
        let mut queues = self.tasks.lock();
        let queue = queues.get_mut(&slot)?;
        let Some((message, waiting)) = queue.pending.pop_front() else {
            queues.remove(&slot);
            return None;
        };
        let (listeners, span) = (waiting.listeners.clone(), waiting.span.clone());
        // A running renewal is not joined: each has parameters of its own.
        let key = waiting.key.clone().filter(|_| message.can_be_joined());
        queue.running = Some(Waiting { key, ..waiting });
        Some((message, listeners, span))
    }
}

/// A slot's task while it runs one message.
pub(super) struct SlotWorker<H> {
    pub(super) parts: Arc<Parts<H>>,
    pub(super) names: SlotNames,
    pub(super) turn: SlotTurn,
    pub(super) listeners: Listeners,
}

impl<H: Host> SlotWorker<H> {
    pub(super) fn slot(&self) -> Slot {
        self.names.slot
    }

    /// The record of the slot.
    pub(super) fn record(&self) -> Option<Record> {
        self.parts.registry.record(self.slot())
    }

    async fn run(&self, message: SlotMessage) -> SlotReply {
        match message {
            SlotMessage::Create { record } => SlotReply::Created(self.create(*record).await),
            SlotMessage::Bind { member, bound, flavor } => {
                SlotReply::Created(self.bind(*member, *bound, flavor).await)
            }
            SlotMessage::Renew { params, uid, lease } => {
                SlotReply::Renewed(self.renew(&params, uid, lease).await.map(|renewed| renewed.map(Box::new)))
            }
            SlotMessage::MakeMember { record, flavor, template } => {
                SlotReply::MemberMade(self.make_member(*record, flavor, template).await)
            }
            SlotMessage::Destroy { params, operator } => {
                SlotReply::Destroyed(self.destroy(&params, operator).await)
            }
            SlotMessage::ForceUnmount(params) => SlotReply::ForceUnmounted(self.force_unmount(*params).await),
            SlotMessage::Reap { reason, audited } => SlotReply::Reaped(self.reap(reason, audited).await),
            SlotMessage::Adopt => {
                self.adopt().await;
                SlotReply::Done
            }
            SlotMessage::Drain { why } => {
                self.drain(&why).await;
                SlotReply::Done
            }
            SlotMessage::Repair(repair) => {
                self.repair(&repair).await;
                SlotReply::Done
            }
            SlotMessage::WriteRecord => {
                self.write_record().await;
                SlotReply::Done
            }
            SlotMessage::Release => {
                self.release_quarantined().await;
                SlotReply::Done
            }
        }
    }
}
