//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// options is the command line.
type options struct {
	egressd   string
	before    string    // an egressd to compare it with; or empty
	variants  []variant // of both that are measured
	peers     []string
	source    string // of egressd
	scenarios []scenario
	length    time.Duration // of one cell
	rounds    int
	clients   int    // at a time, in the scenarios with many
	hosts     int    // in egressd's allow list, beside the few that are asked for
	tunnels   int    // held open in the idle scenario
	starts    int    // rounds of the starts scenario
	records   int    // in the log of the page and log scenarios
	srt       string // the version to install for that; empty: as it is on the machine
	json      bool
}

const usageHead = `usage: go run . [-egressd PATH] [-peers LIST] [-scenarios LIST] [-seconds N] [-rounds N] [-json]

Measures proxies side by side on loopback. Every round runs "direct" (no proxy)
and then each proxy; a ratio is taken within one round, and the table shows
medians over the rounds with the smallest and largest ratio beside them.

`

const usageTail = `
Scenarios:
  connect     CONNECT, a recorded TLS 1.3 ClientHello, 1 byte back, close; 16 workers
  tls         CONNECT, a full TLS 1.3 handshake, one request; 16 workers
  sequential  as connect, one at a time: median time
  denied      CONNECT to a name that is not on the list; 16 workers.
              direct is the same bytes answered with 1 byte by the origin
  http        plain HTTP requests on 16 kept-alive connections
  bulk        one download in one tunnel
  bulk8       eight downloads at once, each in its tunnel
  ping        1 byte there and back in a tunnel, after the hello: median time
  inspected-new    CONNECT, a handshake that the proxy answers with a
                   certificate of its own, one request inside, close; 16 workers
  inspected-kept   requests inside 16 inspected connections that are kept alive
  inspected-h2     requests inside 16 inspected HTTP/2 connections, one at a time in each
  inspected-names  as inspected-new, each for a name that was never asked for, so
                   that each needs a new certificate
  names       questions to egressd's name server from 8 sockets: from its cache, for
              a name that is denied, and for one never asked for before. direct is
              a program that sends back what it gets, and the ratio that of CPU
  starts      "true" alone, under egressd run, bwrap and srt, where they are installed: how
              much longer it takes (the number in parentheses). With -srt VERSION npm
              installs srt for it before anything is timed
  page        egressd ui with a log of -records records: time until the first view and
              until all is read, the median time of a view with another filter, memory.
              Then the median time of a connection through egressd, as in sequential,
              without a page and with five open ones that show its log as it grows
  log         commands about a log of -records records, which a gate wrote: time and CPU, and
              the ratio to cat
  idle        memory of a tunnel that is open and carries nothing

Peers: squid, tinyproxy, mitmproxy (Debian packages), smokescreen, goproxy
(built from -source), and two floors, which only carry bytes: floor-http
is net/http with a goroutine a connection, floor-epoll one event loop for CONNECT. Each gets an allow-list of a few names,
but for mitmproxy, which has none. egressd is measured four times: with durability
disk, with durability process, with the latter and its list in Rego, and "off": built
from -source for this alone, with a log that numbers records and throws them away,
which shows what the log costs. No egressd that anybody runs can do that.
With -before another binary is measured in the same rounds, in all of these but "off".
To spare a peer the cost of name resolution, goproxy maps the name itself,
smokescreen and mitmproxy are asked for 127.0.0.1 and tinyproxy for localhost;
squid has a hosts file, egressd asks bench's name server.

The inspected scenarios are run with those that can look into TLS: egressd
(rules with methods), goproxy (its own MITM, with a P-256 authority and a store
of certificates) and mitmproxy, which takes part in nothing else. All verify
the origin's certificate. Every request of inspected-new and inspected-names
says "Connection: close", so that nobody keeps an upstream connection for the
next one. Direct is the same done with the origin itself, by a client that
trusts the origin's authority instead of the proxy's.

CPU is user and system time of the proxy and its children, by their clocks
(clock_getcpuclockid(3)); of children that have ended, in ticks of 10 ms. Own memory is the growth of
proportional set size (/proc/PID/smaps_rollup; VmRSS of /proc/PID/status where
that cannot be read) of a freshly started proxy, divided by the tunnels. Kernel
memory is the growth of unreclaimable slab and kernel stacks of the whole
machine (/proc/meminfo) and, for root, of socket inodes (/proc/slabinfo), less
the same growth under direct: run it on a quiet machine. Socket buffers and
pipes that hold no data are in it only as structures.

The load generator ends every connection with a reset, and the origins answer
an end of file with one, so that no side runs out of ports. Every answer is
checked; a cell with wrong or failed answers is marked with "!".

Flags:
`

// parseOptions reads the command line, writing usage to errOut.
func parseOptions(args []string, errOut io.Writer) (options, error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.Usage = func() {
		fmt.Fprint(errOut, usageHead+strings.TrimPrefix(usageTail, "\n"))
		fs.PrintDefaults()
	}
	var o options
	egressd := fs.String("egressd", "../build/egressd", "egressd `binary`; empty leaves it out")
	fs.StringVar(&o.before, "before", "", "another egressd `binary`, to be measured beside it")
	measured := fs.String("variants", "all", "of egressd, separated by blanks or commas: disk, process, off, rego")
	peers := fs.String("peers", "", "peers to measure, separated by blanks or commas; \"all\" for every one")
	names := fs.String("scenarios", "all", "scenarios to run, separated by blanks or commas")
	seconds := fs.Float64("seconds", 3, "length of one cell")
	fs.IntVar(&o.rounds, "rounds", 3, "rounds")
	fs.IntVar(&o.clients, "clients", manyClients, "connections at a time, in the scenarios that say 16")
	fs.IntVar(&o.hosts, "hosts", 0, "further hosts in egressd's allow list")
	fs.IntVar(&o.tunnels, "tunnels", 2000, "tunnels held open in the idle scenario")
	fs.IntVar(&o.starts, "starts", 200, "rounds of the starts scenario")
	fs.IntVar(&o.records, "records", 1_000_000, "records in the log of the page and log scenarios")
	fs.StringVar(&o.srt, "srt", "", "`version` of srt that npm installs for the starts scenario; empty: the one in PATH, if any")
	fs.StringVar(&o.source, "source", "..", "`directory` of egressd's source, for the one without a log and for peers that are built")
	fs.BoolVar(&o.json, "json", false, "print one JSON object a line instead of the table")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.egressd = *egressd
	o.length = time.Duration(*seconds * float64(time.Second))
	return o, o.fill(words(*names), words(*peers), words(*measured), fs.Args())
}

// fill checks what the flag package does not.
func (o *options) fill(scenarioNames, peers, variantNames, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if o.length <= 0 || o.rounds < 1 || o.clients < 1 || o.hosts < 0 || o.tunnels < 1 || o.starts < 1 || o.records < 1 {
		return errors.New("-seconds, -rounds, -clients, -tunnels, -starts and -records must be positive")
	}
	var err error
	if o.scenarios, err = scenariosNamed(scenarioNames); err != nil {
		return err
	}
	for i := range o.scenarios {
		if s := &o.scenarios[i]; s.workers == manyClients {
			s.workers = o.clients
		}
	}
	if o.peers, err = peersNamed(peers); err != nil {
		return err
	}
	o.variants, err = variantsNamed(variantNames)
	return err
}

func scenariosNamed(names []string) ([]scenario, error) {
	if slices.Equal(names, []string{"all"}) {
		return scenarios(), nil
	}
	var chosen []scenario
	for _, name := range names {
		i := slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario is called %q", name)
		}
		chosen = append(chosen, scenarios()[i])
	}
	return chosen, nil
}

func peersNamed(names []string) ([]string, error) {
	if slices.Equal(names, []string{"all"}) {
		return peerNames(), nil
	}
	for _, name := range names {
		if !slices.Contains(peerNames(), name) {
			return nil, fmt.Errorf("no peer is called %q; known: %s", name, strings.Join(peerNames(), " "))
		}
	}
	return names, nil
}

func variantsNamed(names []string) ([]variant, error) {
	if slices.Equal(names, []string{"all"}) {
		return variants(), nil
	}
	var chosen []variant
	for _, name := range names {
		i := slices.IndexFunc(variants(), func(v variant) bool { return v.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no variant of egressd is called %q; known: disk process off rego", name)
		}
		chosen = append(chosen, variants()[i])
	}
	return chosen, nil
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' })
}
