"""Sites for scenarios: one process on each host of a cluster, which do what the launcher's script says.

launcher's script ── orders ─▶ queue ─▶ site on n1: a thread for each order ── answers ─▶ queue ─▶ launcher's script
                               queue ─▶ site on n2: ...

Orders and answers are themselves items of shared queues, in the depot of the launcher: its host is the keeper.
"""

from __future__ import annotations

#: Stands after `PREAMBLE` of `hosts`: `Sites(here, 3)` are the sites of a session.
SITES = """
    import logging, queue, traceback
    from concurrent.futures import Future
    from ropewalk.compat.process import Process as AnyProcess, ProcessSource
    from ropewalk.sharing.membership import member_of
    from ropewalk.sharing.queues import JoinableQueue, Queue
    from ropewalk.sharing.synchronize import Barrier, Condition, Event, Lock, RLock, Semaphore

    WARNINGS = []

    class Keeper(logging.Handler):
        def emit(self, record):
            WARNINGS.append(record.getMessage())

    def keep_warnings():
        logging.getLogger("ropewalk").addHandler(Keeper())

    class Site:
        def __init__(self, name, orders, sites):
            self.name, self.orders, self.sites = name, orders, sites

        def begin(self, act, *args):
            # A future of what becomes of it.
            return self.sites.begin(self.orders, act, args)

        def do(self, act, *args):
            return self.begin(act, *args).result(120)

    class Sites:
        def __init__(self, here, num_hosts):
            self.answers = Queue(session=here)
            self.waiting, self.num_orders = {}, 0
            process = type("Process", (AnyProcess,), {"_source": ProcessSource(session=here)})
            threading.Thread(target=self.read, daemon=True).start()
            self.processes, of_host, orders = [], {}, []
            while len(of_host) < num_hosts and len(orders) < 4 * num_hosts:  # two share one that came up first
                more = [Queue(session=here) for _ in range(num_hosts - len(of_host))]
                orders += more
                for one in more:
                    self.processes.append(process(target=serve, args=(one, self.answers), name=f"site"))
                    self.processes[-1].start()
                for one in more:
                    host = self.begin(one, socket.gethostname, ()).result(120)
                    if of_host.setdefault(host, one) is not one:
                        one.put(None)
            self.by_host = {name: Site(name, one, self) for name, one in sorted(of_host.items())}
            assert len(self.by_host) == num_hosts, self.by_host
            # The launcher's own objects live on the keeper's host, which scenarios leave alone.
            agent = member_of(here).depot().partition("|")[0].partition(":")[2]
            keeper = next(name for name, site in self.by_host.items() if site.do(own_agent) == agent)
            self.in_order = [self.by_host.pop(keeper), *self.by_host.values()]

        def __iter__(self):
            return iter(self.in_order)

        def begin(self, orders, act, args):
            self.num_orders += 1
            future = self.waiting[self.num_orders] = Future()
            orders.put((self.num_orders, act, args))
            return future

        def read(self):
            while True:
                try:
                    number, *outcome = self.answers.get()
                except rw.PeerLost:  # the session has ended
                    return
                settle(self.waiting.pop(number), *outcome)

        def begin_here(self, act, *args):
            # The same for a thread of the launcher.
            future = Future()
            threading.Thread(target=lambda: settle(future, *outcome_of(act, args)), daemon=True).start()
            return future

        def end(self, *sites):
            for site in sites or self:
                site.orders.put(None)

    def serve(orders, answers):
        keep_warnings()
        while (order := orders.get()) is not None:
            threading.Thread(target=carry_out, args=(answers, *order), daemon=True).start()

    def carry_out(answers, number, act, args):
        answers.put((number, *outcome_of(act, args)))

    def outcome_of(act, args):
        # What the function returned, and what it raised.
        value = problem = None
        try:
            value = act(*args)
        except Exception as error:
            error.add_note(f"at {socket.gethostname()}: {traceback.format_exc()}")
            problem = error
        return value, problem

    def settle(future, value, problem):
        if problem:
            future.set_exception(problem)
        else:
            future.set_result(value)

    def own_agent():
        from ropewalk.processes import bootstrap
        return bootstrap.current.passport.host

    def warnings():
        return list(WARNINGS)
"""
