package exchange

import (
	"crypto/sha256"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/strictjson"
	"github.com/egressd/egressd/policy"
)

const (
	lfsBytes     = 1 << 20        // of one answer that is read
	lfsFor       = time.Hour      // an action holds if its answer does not say how long
	lfsForMost   = 24 * time.Hour // if it says more
	lfsOfSandbox = 8192           // actions that are kept; with more those that end first are forgotten
	lfsSandboxes = 256            // whose actions are kept; with one more all are forgotten
)

// lfsMethods are the methods of the actions (git-lfs, docs/api/basic-transfers.md).
var lfsMethods = map[string]string{"upload": http.MethodPut, "verify": http.MethodPost, "download": http.MethodGet}

// lfsActions keeps what answers to batches of Git LFS have told sandboxes to send. It is safe for concurrent use.
type lfsActions struct {
	mu sync.Mutex
	of map[string]map[lfsKey]lfsAction // by sandbox
}

// An lfsKey is the digest of a method and a URL.
type lfsKey [sha256.Size]byte

type lfsAction struct {
	policy.LFSAction
	digest string // of the policy that let the batch pass
	until  time.Time
	fields []lfsField // that the client is to send with the request
}

// An lfsField is a field of an action as the client got it. Of a struck one a credential of the host was covered.
type lfsField struct {
	http1.Field
	struck bool
}

func keyOfLFS(method, scheme, host, target string) lfsKey {
	return sha256.Sum256([]byte(method + " " + scheme + "://" + host + target))
}

// find returns the action with the key, if it was kept for the sandbox under the policy with the digest.
func (l *lfsActions) find(sandbox, digest string, key lfsKey) (found lfsAction, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok = l.of[sandbox][key]
	return found, ok && found.digest == digest && time.Now().Before(found.until)
}

// keep adds actions for a sandbox.
func (l *lfsActions) keep(sandbox string, actions map[lfsKey]lfsAction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil || len(l.of) >= lfsSandboxes && l.of[sandbox] == nil {
		l.of = map[string]map[lfsKey]lfsAction{}
	}
	mine := l.of[sandbox]
	if mine == nil {
		mine = map[lfsKey]lfsAction{}
		l.of[sandbox] = mine
	}
	maps.Copy(mine, actions)
	if len(mine) <= lfsOfSandbox {
		return
	}
	first := slices.SortedFunc(maps.Keys(mine), func(a, b lfsKey) int { return mine[a].until.Compare(mine[b].until) })
	for _, key := range first[:len(mine)-lfsOfSandbox/2] { // half of them, or each further answer would sort them again
		delete(mine, key)
	}
}

// kept returns the action that the request carries out, if there is one.
func (x *Exchange) kept(sandbox, digest string) (lfsAction, bool) {
	scheme := "https"
	if x.Tunnel == nil {
		scheme = "http"
	}
	return x.Client.Forwarder.lfs.find(sandbox, digest, keyOfLFS(x.Method, scheme, x.Destination.String(), x.Target.RequestURI()))
}

// LFSAction implements [egress.RequestReader].
func (x *Exchange) LFSAction(f *egress.Flow, digest string) *policy.LFSAction {
	if a, ok := x.kept(f.Sandbox(), digest); ok {
		a.Own = a.Server == x.Destination.String()
		return &a.LFSAction
	}
	return nil
}

// givenByLFS returns the fields that the server has told the client to send with this request. It takes those fields out of the
// request in which a credential was covered: egressd adds the credential anew.
func (x *Exchange) givenByLFS() (given http1.Fields) {
	if x.Flow.LFSAction() == nil {
		return nil
	}
	_, digest := x.Flow.Credential()
	a, _ := x.kept(x.Flow.Sandbox(), digest)
	for _, f := range a.fields {
		if !f.struck {
			given = append(given, f.Field)
			continue
		}
		x.Fields = slices.DeleteFunc(slices.Clone(x.Fields), func(sent http1.Field) bool {
			return strings.EqualFold(sent.Name, f.Name) && sent.Value == f.Value
		})
	}
	return given
}

// expectLFS has the answer to a batch read, if a rule for git has let the batch pass.
func (x *Exchange) expectLFS() {
	if asked := x.Flow.Git(); asked != nil && asked.Batch && (asked.Name == "lfs-upload" || asked.Name == "lfs-download") {
		x.lfs = &lfsAnswer{exchange: x, repo: asked.Repo, upload: asked.Name == "lfs-upload"}
		x.Fields = x.Fields.Delete("Accept-Encoding") // what is compressed is not read
	}
}

// An lfsAnswer reads the answer to a batch, and keeps its actions before the client gets the last of it. If an answer is
// too long or malformed, it passes, and egressd keeps no action of it.
type lfsAnswer struct {
	exchange *Exchange
	repo     string
	upload   bool
	read     []byte
	passes   bool       // the answer is too long
	then     bodyFilter // of what passes, or nil
}

func (a *lfsAnswer) scan(b []byte) ([]byte, error) {
	if !a.passes && len(a.read)+len(b) <= lfsBytes && a.exchange.growAnswer(len(b)) {
		a.read = append(a.read, b...)
		return nil, nil
	}
	a.passes = true
	b = append(a.read, b...)
	a.read = nil
	if a.then == nil {
		return b, nil
	}
	return a.then.scan(b)
}

func (a *lfsAnswer) flush() ([]byte, error) {
	if !a.passes {
		a.keep()
	}
	if a.then == nil {
		return a.read, nil
	}
	first, err := a.then.scan(a.read)
	if err != nil {
		return nil, err
	}
	return withRest(a.then, first)
}

// growAnswer asks for the memory of more of an answer. It is free again when the exchange ends.
func (x *Exchange) growAnswer(n int) bool {
	if x.answerMemory == nil {
		x.answerMemory = x.Client.Forwarder.BodyMemory.Reserve(x.Flow.Holder(), x.Flow.Sandbox())
	}
	return x.answerMemory.Grow(int64(n))
}

// sent implements [bodyFilter].
func (a *lfsAnswer) sent() {}

// keep keeps the actions of the answer.
func (a *lfsAnswer) keep() {
	x := a.exchange
	if x.end.Status != http.StatusOK {
		return
	}
	_, digest := x.Flow.Credential()
	actions := map[lfsKey]lfsAction{}
	for _, one := range readLFS(a.read) {
		method, known := lfsMethods[one.name]
		scheme, host, target, ok := splitHref(one.href)
		if !known || !ok || one.size < 0 || a.upload != (one.name != "download") {
			continue
		}
		kept := lfsAction{
			LFSAction: policy.LFSAction{Server: x.Destination.String(), Repo: a.repo, Name: one.name, Size: one.size},
			digest:    digest, until: one.until(time.Now()),
		}
		for _, f := range one.fields {
			field := lfsField{Field: f}
			if x.redaction != nil {
				field.Value, field.struck = x.redaction.RedactString(f.Value)
			}
			kept.fields = append(kept.fields, field)
		}
		actions[keyOfLFS(method, scheme, host, target)] = kept
	}
	if len(actions) > 0 {
		x.Client.Forwarder.lfs.keep(x.Flow.Sandbox(), actions)
	}
}

// splitHref takes a URL apart, as a client does that asks for it.
func splitHref(href string) (scheme, host, target string, ok bool) {
	scheme, rest, _ := strings.Cut(href, "://")
	at := strings.IndexByte(rest, '/')
	if at < 0 || scheme != "https" && scheme != "http" {
		return "", "", "", false
	}
	d, err := policy.ParseDestination(rest[:at])
	if err != nil {
		d, err = policy.ParseDestination(rest[:at] + map[string]string{"https": ":443", "http": ":80"}[scheme])
	}
	t, bad := http1.ParseTarget(http.MethodGet, rest[at:])
	return scheme, d.String(), t.RequestURI(), err == nil && bad == nil
}

// An lfsOffer is one action of an answer.
type lfsOffer struct {
	name, href, expiresAt string
	size                  int64 // of its object; -1 if that is not said
	expiresIn             int64
	fields                http1.Fields
}

// until returns when the action ends. expires_in is preferred over expires_at (git-lfs, docs/api/batch.md).
func (o *lfsOffer) until(now time.Time) time.Time {
	holds := lfsFor
	if at, err := time.Parse(time.RFC3339, o.expiresAt); err == nil {
		holds = at.Sub(now)
	}
	if o.expiresIn != 0 {
		holds = time.Duration(min(o.expiresIn, int64(lfsForMost/time.Second))) * time.Second
	}
	return now.Add(min(holds, lfsForMost))
}

// readLFS returns the actions of an answer, and none of an answer that can be read in two ways.
func readLFS(answer []byte) (offers []*lfsOffer) {
	sizes := map[int]int64{} // of objects, by index
	var of []int             // the object of each offer
	if strictjson.Walk(answer, func(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
		if len(at) < 3 || at[0].Name != "objects" || at[1].Index < 0 {
			return
		}
		object := at[1].Index
		switch {
		case len(at) == 3 && at[2].Name == "size" && kind == '0':
			if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
				sizes[object] = n
			}
		case len(at) == 4 && at[2].Name == "actions" && kind == '{':
			offers, of = append(offers, &lfsOffer{name: at[3].Name, size: -1}), append(of, object)
		case len(at) > 4 && at[2].Name == "actions" && len(offers) > 0:
			offers[len(offers)-1].take(at[4:], kind, raw)
		}
	}) != nil {
		return nil
	}
	for i, o := range offers {
		if size, said := sizes[of[i]]; said {
			o.size = size
		}
	}
	return offers
}

// take takes a member of the action.
func (o *lfsOffer) take(at []strictjson.PathStep, kind strictjson.ValueKind, raw []byte) {
	switch {
	case len(at) == 1 && at[0].Name == "href" && kind == '"':
		o.href = strictjson.Text(raw)
	case len(at) == 1 && at[0].Name == "expires_at" && kind == '"':
		o.expiresAt = strictjson.Text(raw)
	case len(at) == 1 && at[0].Name == "expires_in" && kind == '0':
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			o.expiresIn = n
		}
	case len(at) == 2 && at[0].Name == "header" && kind == '"':
		o.fields = append(o.fields, http1.Field{Name: at[1].Name, Value: strictjson.Text(raw)})
	}
}
