//! Many VMs that interrupt each other, lose writes, stall and die, at random, against the caps.

use super::*;

const TENANTS: [&str; 2] = ["acme", "zeta"];
const POOLS: [&str; 2] = ["p", "q"];

/// One VM of the model, and what the model believes of it.
struct Modelled {
    vm: Vm,
    leases: Vec<(LeaseId, usize, usize)>,
    /// Leases it held when others took it for dead: by so many a cap may be exceeded.
    excused: Vec<LeaseId>,
    fenced: Option<Holder>,
}

impl Modelled {
    fn new(proxy: &Proxy) -> Self {
        Self { vm: proxy.vm(), leases: Vec::new(), excused: Vec::new(), fenced: None }
    }

    fn act(&mut self, proxy: &Proxy, rng: &mut fastrand::Rng) {
        if rng.bool() || self.leases.is_empty() {
            let (tenant, pool) = (rng.usize(..TENANTS.len()), rng.usize(..POOLS.len()));
            let lease = proxy.admit_to(&mut self.vm, TENANTS[tenant], POOLS[pool]);
            self.leases.extend(lease.map(|lease| (lease, tenant, pool)));
        } else {
            let (lease, ..) = self.leases.swap_remove(rng.usize(..self.leases.len()));
            self.vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
        }
    }

    fn note_fencing(&mut self, members: &Members) {
        let fenced = self.vm.holder().filter(|holder| !members.counts(holder.epoch));
        if fenced.is_some() && fenced != self.fenced {
            self.fenced = fenced;
            self.excused = self.leases.iter().map(|(lease, ..)| *lease).collect();
        }
    }
}

/// Many VMs over one memory.
struct Model {
    proxy: Proxy,
    vms: Vec<Rc<RefCell<Modelled>>>,
    observer: Vm,
    stalled: usize,
    tenant_caps: [u64; 2],
    pool_caps: [u64; 2],
}

impl Model {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let (tenant_caps, pool_caps) = ([(); 2].map(|()| rng.u64(1..6)), [(); 2].map(|()| rng.u64(1..6)));
        let json = format!(
            r#"{{"tenants": {{"acme": {{"max_in_flight": {}}}, "zeta": {{"max_in_flight": {}}}}},
                "pools": [{{"name": "p", "max_in_flight": 99, "classes": [{{"name": "c", "max_in_flight": {}}}]}}, {{"name": "q", "models": ["q"], "max_in_flight": {}}}]}}"#,
            tenant_caps[0], tenant_caps[1], pool_caps[0], pool_caps[1]
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        let proxy = Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) };
        let vms = (0..rng.usize(2..5)).map(|_| Rc::new(RefCell::new(Modelled::new(&proxy)))).collect();
        let observer = proxy.vm();
        Self { proxy, vms, observer, stalled: usize::MAX, tenant_caps, pool_caps }
    }

    /// Some VM does something, perhaps while another does something else in the middle of it, perhaps while writes lose.
    fn step(&mut self, rng: &mut fastrand::Rng) {
        let index = rng.usize(..self.vms.len());
        let record = ["pool/p", "pool/q", "tenant/acme", "tenant/zeta", "members"][rng.usize(..5)];
        match rng.u8(..8) {
            0 => self.proxy.store.fail_on(record, rng.u32(0..70)),
            1..4 => {
                let rival = Rc::clone(&self.vms[(index + 1) % self.vms.len()]);
                let (proxy, mut rng) = (self.proxy.clone(), rng.fork());
                self.proxy.store.before_write(record, move || {
                    if let Ok(mut rival) = rival.try_borrow_mut() {
                        rival.act(&proxy, &mut rng);
                    }
                });
            }
            _ => {}
        }
        match rng.u8(..40) {
            0..30 => self.vms[index].borrow_mut().act(&self.proxy, rng),
            30 => *self.vms[index].borrow_mut() = Modelled::new(&self.proxy),
            31 => self.stalled = index,
            32 => self.stalled = usize::MAX,
            _ => self.tick(),
        }
    }

    fn tick(&mut self) {
        self.proxy.now = Time(self.proxy.now.0 + TICK.0);
        // A tick that loses to other writers is an ordinary thing; the next one makes up for it.
        let _ = self.observer.tick(&*self.proxy.store, self.proxy.now);
        for (place, modelled) in self.vms.iter().enumerate() {
            if place != self.stalled {
                let _ = modelled.borrow_mut().vm.tick(&*self.proxy.store, self.proxy.now);
            }
        }
    }

    fn check_caps(&self, seed: u64) {
        let members = store::read::<Members>(&*self.proxy.store, &self.proxy.policy.keys.members()).unwrap().0;
        self.vms.iter().for_each(|modelled| modelled.borrow_mut().note_fencing(&members));
        for place in 0..2 {
            let count = |counted: &dyn Fn(&(LeaseId, usize, usize)) -> bool| -> (u64, u64) {
                let vms = self.vms.iter().map(|modelled| {
                    let modelled = modelled.borrow();
                    let held: Vec<_> = modelled.leases.iter().filter(|lease| counted(lease)).collect();
                    let excused = held.iter().filter(|(lease, ..)| modelled.excused.contains(lease)).count();
                    (held.len() as u64, excused as u64)
                });
                vms.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            let (held, excused) = count(&|(_, tenant, _)| *tenant == place);
            let cap = self.tenant_caps[place];
            assert!(
                held <= cap + excused,
                "seed {seed}: {} holds {held}, cap {cap}, {excused} excused",
                TENANTS[place]
            );
            let (held, excused) = count(&|(_, _, pool)| *pool == place);
            let cap = self.pool_caps[place];
            assert!(held <= cap + excused, "seed {seed}: {} holds {held}, cap {cap}, {excused} excused", POOLS[place]);
        }
    }

    /// Ends every request and lets time pass.
    fn end(mut self, seed: u64) {
        self.proxy.store.fail_on("", 0);
        self.proxy.store.before_write("no such key", || ());
        self.stalled = usize::MAX;
        for modelled in &self.vms {
            let Modelled { vm, leases, .. } = &mut *modelled.borrow_mut();
            for (lease, ..) in leases.drain(..) {
                vm.release(&*self.proxy.store, lease, Usage::AsEstimated, self.proxy.now);
            }
        }
        (0..DEAD_AFTER_TICKS + 2).for_each(|_| self.tick());
        let keys = &self.proxy.policy.keys;
        for key in [keys.tenant("acme"), keys.tenant("zeta"), keys.pool("p"), keys.pool("q")] {
            assert_eq!(self.proxy.held(&key), Amount::default(), "seed {seed}: {key}");
        }
        assert_eq!(self.proxy.tallied("p", TallyKey::class("c")), 0, "seed {seed}");
    }
}

#[test]
fn no_interleaving_exceeds_a_cap_or_loses_a_release() {
    for seed in 0..120 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = Model::new(&mut rng);
        for _ in 0..500 {
            model.step(&mut rng);
            model.check_caps(seed);
        }
        model.end(seed);
    }
}
