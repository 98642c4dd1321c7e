//! What requests have taught about models: read from the shared records now and then, added to on the tick.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Vm;
use crate::config::OutputEstimate;
use crate::estimate::{Batch, Belief, Estimator, Experience, Observed};
use crate::family::Family;
use crate::hash;
use crate::keys::Keys;
use crate::policy::Pool;
use crate::store::{self, Store, Version};
use crate::units::{Millis, Time, Tokens};

/// For so long a record is taken for what it was when it was read.
const READ_VALID: Millis = Millis(1_000);

/// Most names of models whose families are remembered; callers may send any.
const MOST_FAMILIES: usize = 16;

/// The models of a pool that fit one of its patterns.
type Name = (String, String);

/// What this VM knows of models, and what it has not told the others yet.
#[derive(Default)]
pub(super) struct Learning(BTreeMap<Name, Known>);

struct Known {
    key: String,
    experience: Experience,
    version: Version,
    read: Option<Time>,
    /// By the name of the model, some of those last asked for: a family takes longer to tell than to remember.
    families: BTreeMap<String, Family>,
    /// By the family that stands for what is not known yet; few, whatever names callers invent. And that of the family alone.
    beliefs: BTreeMap<Family, (Rc<Belief>, Rc<Belief>)>,
    batch: Batch,
}

/// What the end of a request tells of its model.
#[derive(Clone, Copy, Debug)]
pub struct Lesson<'a> {
    /// As the request named it.
    pub model: Option<&'a str>,
    /// Of its tenant's record.
    pub tenant_key: &'a str,
    /// What was observed; the tenant's slot is filled in.
    pub observed: Observed,
}

impl Learning {
    fn known(&mut self, store: &impl Store, keys: &Keys, pool: &str, pattern: &str, now: Time) -> &mut Known {
        let known = self.0.entry((pool.to_owned(), pattern.to_owned())).or_insert_with_key(|(pool, pattern)| Known {
            key: keys.model(pool, pattern),
            experience: Experience::default(),
            version: Version::Absent,
            read: None,
            families: BTreeMap::new(),
            beliefs: BTreeMap::new(),
            batch: Batch::default(),
        });
        known.refresh(store, now);
        known
    }
}

impl Known {
    fn refresh(&mut self, store: &impl Store, now: Time) {
        if self.read.is_some_and(|read| now.since(read) < READ_VALID) {
            return;
        }
        self.read = Some(now);
        // Where something else stands in its place, what the family says has to do.
        if let Ok((experience, version)) = store::read::<Experience>(store, &self.key)
            && version != self.version
        {
            (self.experience, self.version) = (experience, version);
            self.beliefs.clear();
        }
    }

    fn family(&mut self, pool: &Pool, model: Option<&str>) -> Family {
        let name = model.unwrap_or_default();
        if let Some(family) = self.families.get(name) {
            return *family;
        }
        if self.families.len() >= MOST_FAMILIES {
            self.families.clear();
        }
        let family = pool.family(model);
        self.families.insert(name.to_owned(), family);
        family
    }

    /// What is believed of a model of a pool, and what its family says.
    fn beliefs(&mut self, pool: &Pool, model: Option<&str>) -> &(Rc<Belief>, Rc<Belief>) {
        let family = pool.estimate.family.unwrap_or_else(|| self.family(pool, model));
        let of = |experience: &Experience| Rc::new(experience.belief(family.weights()));
        let work_out = || (of(&self.experience), of(&Experience::default()));
        self.beliefs.entry(family).or_insert_with(work_out)
    }

    /// What holds for a tenant.
    fn belief_for(&mut self, pool: &Pool, model: Option<&str>, tenant: u8) -> Rc<Belief> {
        let fits = self.experience.fits(tenant);
        let (learned, family) = self.beliefs(pool, model);
        Rc::clone(if fits { learned } else { family })
    }
}

impl Learning {
    fn estimator(
        &mut self,
        store: &impl Store,
        keys: &Keys,
        pool: &Pool,
        model: Option<&str>,
        tenant_key: &str,
        now: Time,
    ) -> Estimator {
        let known = self.known(store, keys, &pool.name, pool.model_label(model), now);
        let tenant = slot_of(tenant_key);
        let learned = match pool.estimate.output {
            OutputEstimate::Learned => known.experience.quantile(tenant, pool.estimate.quantile),
            OutputEstimate::Expected | OutputEstimate::MaxTokens => None,
        };
        let usual_output = learned.unwrap_or(pool.expected_output).max(Tokens(1));
        Estimator { belief: known.belief_for(pool, model, tenant), usual_output }
    }

    fn learn(&mut self, store: &impl Store, keys: &Keys, pool: &Pool, lesson: Lesson<'_>, now: Time) {
        let Lesson { model, tenant_key, observed } = lesson;
        let observed = Observed { tenant: slot_of(tenant_key), ..observed };
        let (pattern, unread) = (pool.model_label(model), pool.model_label(None));
        if pattern != unread {
            // Answers are expected of requests too whose model has not been read yet: of those all of the pool's count.
            let lengths = Observed { prompt: None, ..observed };
            let known = self.known(store, keys, &pool.name, unread, now);
            let belief = Rc::clone(&known.beliefs(pool, None).0);
            known.batch.observe(&lengths, &belief);
        }
        let known = self.known(store, keys, &pool.name, pattern, now);
        let belief = Rc::clone(&known.beliefs(pool, model).0);
        known.batch.observe(&observed, &belief);
    }

    /// Adds what was learned since the last time to the shared records. What others were faster at waits for the next time.
    pub(super) fn share(&mut self, store: &impl Store) {
        for known in self.0.values_mut().filter(|known| !known.batch.is_empty()) {
            let merge = |experience: &mut Experience| {
                experience.merge(&known.batch);
                Ok::<(), std::convert::Infallible>(())
            };
            if store::update(store, &known.key, merge).is_ok() {
                known.batch = Batch::default();
            }
        }
    }
}

impl Vm {
    /// Estimator of a tenant's requests to a pool, by the model that they name if that is known.
    pub fn estimator(
        &mut self,
        store: &impl Store,
        pool: &Pool,
        model: Option<&str>,
        tenant_key: &str,
        now: Time,
    ) -> Estimator {
        self.learning.estimator(store, &self.membership.keys, pool, model, tenant_key, now)
    }

    /// Takes what the end of a request tells; the next tick tells the other VMs.
    pub fn learn(&mut self, store: &impl Store, pool: &Pool, lesson: Lesson<'_>, now: Time) {
        self.learning.learn(store, &self.membership.keys, pool, lesson, now);
    }

    /// Forgets the models of which `is_used` says, by the names of pool and pattern, that no policy names them any more. Their keys
    /// stay, since shared data cannot remove one, and hold nothing. Gives false where others were faster, to be tried again.
    pub fn forget_models(&mut self, store: &impl Store, is_used: impl Fn(&str, &str) -> bool) -> bool {
        self.learning.0.retain(|(pool, pattern), known| is_used(pool, pattern) || !emptied(store, &known.key));
        self.learning.0.keys().all(|(pool, pattern)| is_used(pool, pattern))
    }
}

/// Leaves nothing in a record, which reads as one that was never written; false where another writer was faster.
fn emptied(store: &impl Store, key: &str) -> bool {
    match store.read(key) {
        (Some(bytes), version) if !bytes.is_empty() => store.write(key, &[], version).is_ok(),
        _ => true,
    }
}

/// Tenants share a few slots in each record.
fn slot_of(tenant_key: &str) -> u8 {
    let [slot, ..] = hash::stable(tenant_key.as_bytes()).to_le_bytes();
    slot
}
