package run

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// A receiver takes lines at a Unix socket while it is up.
type receiver struct {
	path string
	l    net.Listener

	mu    sync.Mutex
	lines []string
}

func (r *receiver) up(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.l = l
	t.Cleanup(func() { l.Close() })
	world.Serve(t, l, func(c net.Conn) {
		defer c.Close()
		for in := bufio.NewScanner(c); in.Scan(); {
			r.mu.Lock()
			r.lines = append(r.lines, in.Text())
			r.mu.Unlock()
		}
	})
}

// judged waits until the rows are of so many logs that are good, and returns what egressd says of each.
func (r *receiver) judged(t *testing.T, d *world.Daemon, logs int) (all []verify.RowsReport) {
	t.Helper()
	world.WaitFor(t, fmt.Sprintf("%d whole logs", logs), func() bool {
		r.mu.Lock()
		text := strings.Join(r.lines, "\n")
		r.mu.Unlock()
		path := filepath.Join(d.Dir, "rows.jsonl")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil || text == "" {
			return false
		}
		out := commanded(d, "log", "verify", "--json", "--rows", path)
		var answer struct{ Logs []verify.RowsReport }
		if json.Unmarshal([]byte(out.Out), &answer) != nil {
			return false
		}
		all = answer.Logs
		return out.Code == 0 && len(all) == logs
	})
	return all
}

// sending returns a policy whose records go to a receiver that is not up yet.
func sending(t *testing.T) (d *world.Daemon, config string, r *receiver) {
	t.Helper()
	d, config, _ = indexed(t)
	r = &receiver{path: filepath.Join(t.TempDir(), "collector.sock")}
	text := "version: 1\nallow: []\naudit: {sinks: [{name: store, type: unix, path: " + r.path + "}]}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return d, config, r
}

// commanded runs a command of egressd outside the test's networks.
func commanded(d *world.Daemon, argv ...string) world.Result {
	cmd := d.Command(context.Background(), nil, argv...)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	err := cmd.Run()
	return world.Result{Out: out.String(), Talk: talk.String(), Code: world.ExitCode(err)}
}

func sentRun(t *testing.T, d *world.Daemon) (folder string, records []record.Record) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(d.Dir, "egressd", "runs", "*"))
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	folder = all[len(all)-1]
	for line := range strings.Lines(readAll(t, filepath.Join(folder, "00000001.log"))) {
		r, err := record.Decode([]byte(strings.TrimSuffix(line, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, *r)
	}
	return folder, records
}

// TestARunSends has a receiver get the whole log of a short run, with its last heartbeat.
func TestARunSends(t *testing.T) {
	d, config, r := sending(t)
	r.up(t)
	if e := commanded(d, "run", "--config", config, "--", "curl", "-sS", "http://evil.test/"); strings.Contains(e.Talk, "has not got") {
		t.Errorf("it said %s", e.Talk)
	}
	folder, records := sentRun(t, d)
	one := r.judged(t, d, 1)[0]
	last := records[len(records)-1]
	if one.Records != int64(len(records)) || one.Agreed != one.Records-1 || last.Kind != record.KindHeartbeat || last.Log.Origin != one.Origin {
		t.Errorf("%d records, %+v, the last is %+v", len(records), one, last)
	}
	if _, err := os.Lstat(filepath.Join(folder, "sinks")); err == nil {
		t.Error("a run that has sent all looks as if it had not")
	}
}

// TestALaterRunSends has runs without a receiver, one of them killed, and then one with it.
func TestALaterRunSends(t *testing.T) {
	d, config, r := sending(t)
	if e := commanded(d, "run", "--config", config, "--", "true"); e.Code != 0 || !strings.Contains(e.Talk, "the sink store has not got") {
		t.Errorf("exit %d, %s", e.Code, e.Talk)
	}
	killed := runCommand(d, config, "sleep", "60")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	world.WaitFor(t, "a checkpoint of the run that is killed", func() bool {
		all, _ := filepath.Glob(filepath.Join(d.Dir, "egressd", "runs", "*", "sinks", "store.json"))
		return len(all) == 2
	})
	time.Sleep(50 * time.Millisecond)
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	r.up(t)
	if e := commanded(d, "run", "--config", config, "--", "sleep", "1"); e.Code != 0 || strings.Contains(e.Talk, "has not got") {
		t.Errorf("exit %d, %s", e.Code, e.Talk)
	}
	r.judged(t, d, 3)
	world.WaitFor(t, "all runs to be sent", func() bool {
		left, _ := filepath.Glob(filepath.Join(d.Dir, "egressd", "runs", "*", "sinks"))
		return len(left) == 0
	})
}

// TestASilentReceiverEndsNoRunLate has a receiver that takes nothing.
func TestASilentReceiverEndsNoRunLate(t *testing.T) {
	d, config, r := sending(t)
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // which nobody accepts from; its queue takes a connection and some bytes
	began := time.Now()
	e := commanded(d, "run", "--config", config, "--", "true")
	if took := time.Since(began); e.Code != 0 || took > 15*time.Second {
		t.Errorf("exit %d after %s, %s", e.Code, took, e.Talk)
	}
}
