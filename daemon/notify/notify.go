// Package notify tells people elsewhere of questions: it posts them to webhooks of Slack and Mattermost and to topics of ntfy.
// It answers nothing: a message holds a link for that, see Links of package admin.
//
//	n := &notify.Notifier{Gate: gate, Link: links.To}
//	n.Apply(ctx, []notify.Receiver{{Name: "team", Type: "slack", URL: "https://hooks.slack.com/services/…"}})
//
// What cannot be delivered is tried again for as long as the question has no answer. A failure is no answer.
package notify

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/logs/sink"
)

// A Receiver is where questions are sent.
type Receiver struct {
	Name    string
	Type    string // "slack", "mattermost" or "ntfy"
	URL     string // a secret: whoever has it may write there, and with ntfy read
	Headers http.Header
	Roots   *x509.CertPool // nil: the system's
}

// Check returns what is wrong with the receiver, without its URL.
func (r *Receiver) Check() error {
	u, err := url.Parse(r.URL)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "":
		return errors.New("its url_file holds no URL of a receiver, such as https://hooks.slack.com/services/…")
	case r.Type == "ntfy" && (u.RawQuery != "" || path.Base(u.Path) == "/" || path.Base(u.Path) == "."):
		return errors.New("its url_file holds no URL of a topic, such as https://ntfy.example.com/TOPIC")
	}
	return nil
}

// A Notifier sends each receiver one message about each question that waits for a person, and one more when the question is settled. It is safe for concurrent use.
type Notifier struct {
	Gate  *egress.Gate
	Link  func(receiver string, q *egress.Question) string // nil: messages name the command alone
	Flags string                                           // of the command, each after a space

	mu        sync.Mutex // guards what follows
	receivers map[string]*receiver
}

// Times.
const (
	unasked    = time.Second     // a question of a sandbox of its own waits so long: approve_within may answer it
	retryFirst = 2 * time.Second // after a failure, and twice as long after each further one
	retryMost  = 5 * time.Minute
)

// Bounds of messages for one sandbox, or for all of one template: burst is the number at once, rate the number a second after
// that. Further questions are told later.
const (
	burst = 10
	rate  = 1.0 / 6
)

// A receiver is one that is told of questions, by a goroutine of its own.
type receiver struct {
	Receiver
	notifier *Notifier
	post     *sink.Poster
	end      context.CancelFunc
	ended    chan struct{}

	buckets map[string]*fair.Bucket // by sandbox or template; of the goroutine

	mu    sync.Mutex // guards what follows
	state policystatus.Notified
}

// Apply has exactly these receivers told from now on, until ctx is done. One that is as before goes on.
func (n *Notifier) Apply(ctx context.Context, all []Receiver) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.receivers
	n.receivers = map[string]*receiver{}
	for _, one := range all {
		if r := before[one.Name]; r != nil && reflect.DeepEqual(r.Receiver, one) {
			n.receivers[one.Name] = r
			delete(before, one.Name)
			continue
		}
		n.receivers[one.Name] = n.begin(ctx, one)
	}
	for _, r := range before {
		r.stop()
	}
}

func (n *Notifier) begin(ctx context.Context, one Receiver) *receiver {
	at := one.URL
	if one.Type == "ntfy" {
		at, _ = ntfyServer(one.URL)
	}
	r := &receiver{
		Receiver: one, notifier: n, post: sink.NewPoster(at, one.Headers, one.Roots), ended: make(chan struct{}),
		buckets: map[string]*fair.Bucket{}, state: policystatus.Notified{Name: one.Name, Type: one.Type},
	}
	ctx, r.end = context.WithCancel(ctx)
	go func() {
		defer close(r.ended)
		r.follow(ctx)
	}()
	return r
}

func (r *receiver) stop() {
	r.end()
	<-r.ended
	r.post.Close()
}

// Stop tells nobody any more, and returns when all goroutines have ended.
func (n *Notifier) Stop() { n.Apply(context.Background(), nil) }

// States returns what came of the messages, by receiver.
func (n *Notifier) States() (all []policystatus.Notified) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(n.receivers)) {
		r := n.receivers[name]
		r.mu.Lock()
		all = append(all, r.state)
		r.mu.Unlock()
	}
	return all
}

// follow tells of each question until ctx is done.
func (r *receiver) follow(ctx context.Context) {
	told := map[string]egress.Question{} // as it was told
	retry := retryFirst
	for version := ^uint64(0); ctx.Err() == nil; {
		all := r.notifier.Gate.Approvals.Questions(ctx, version)
		version = all.Version
		rest := r.tell(ctx, &all, told)
		switch {
		case rest.failed:
			rest.wait = max(rest.wait, retry)
			retry = min(2*retry, retryMost)
		case rest.sent:
			retry = retryFirst
		}
		if rest.wait == 0 {
			continue
		}
		version = ^uint64(0)
		select {
		case <-time.After(rest.wait):
		case <-ctx.Done():
		}
	}
}

// A left says how a round of messages ended.
type left struct {
	sent, failed bool
	wait         time.Duration // until another round; 0: until the list changes
}

// tell sends messages about settled questions, and about pending ones that told does not have yet. It stops at the first failure.
func (r *receiver) tell(ctx context.Context, all *egress.Questions, told map[string]egress.Question) (rest left) {
	wait, err := r.tellSettled(ctx, all, told, &rest)
	if err != nil {
		return left{rest.sent, true, wait}
	}
	now := time.Now()
	maps.DeleteFunc(r.buckets, func(_ string, b *fair.Bucket) bool { return b.Full(now) })
	later := func(wait time.Duration) {
		if rest.wait == 0 || wait < rest.wait {
			rest.wait = wait
		}
	}
	for i := range all.Questions {
		q := &all.Questions[i]
		if _, was := told[q.ID]; was || q.State != string(approvals.Pending) || ctx.Err() != nil {
			continue
		}
		if young := unasked - time.Since(q.Began); q.Pattern != "" && young > 0 {
			later(young)
			continue
		}
		if !r.mayTell(cmp.Or(q.Template, q.Sandbox)) { // whoever may invent names has one share
			later(time.Second)
			continue
		}
		wait, err := r.send(ctx, q)
		if err != nil {
			return left{rest.sent, true, wait}
		}
		told[q.ID], rest.sent = *q, true
	}
	return rest
}

// tellSettled sends a message about each question in told that is answered or gone by now. The receiver gets at most one such
// message for each message that asked, so the bound on questions bounds these, too.
func (r *receiver) tellSettled(ctx context.Context, all *egress.Questions, told map[string]egress.Question, rest *left) (wait time.Duration, err error) {
	now := map[string]*egress.Question{}
	for i := range all.Questions {
		now[all.Questions[i].ID] = &all.Questions[i]
	}
	for _, id := range slices.Sorted(maps.Keys(told)) {
		was, is := told[id], now[id]
		if was.State == string(approvals.Pending) && (is == nil || is.State != was.State) {
			if is == nil {
				was.State = string(approvals.Gone)
				is = &was
			}
			if wait, err = r.send(ctx, is); err != nil {
				return wait, err
			}
			rest.sent = true
		}
		if now[id] == nil {
			delete(told, id)
		} else {
			told[id] = *is
		}
	}
	return 0, nil
}

func (r *receiver) mayTell(who string) bool {
	b := r.buckets[who]
	if b == nil {
		b = &fair.Bucket{Rate: rate, Most: burst}
		r.buckets[who] = b
	}
	ok, _ := b.Take(1, time.Now())
	return ok
}

// send sends one message. wait is how long the receiver asks to wait after an error.
func (r *receiver) send(ctx context.Context, q *egress.Question) (wait time.Duration, err error) {
	m := chatMessage{q: q, command: r.notifier.Flags}
	if r.notifier.Link != nil && q.State == string(approvals.Pending) {
		m.link = r.notifier.Link(r.Name, q)
	}
	body, err := m.payload(r.Type, r.URL)
	if err == nil {
		wait, err = r.post.Post(ctx, body)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.state.Failed++
		r.state.Error = err.Error()
		return wait, fmt.Errorf("notify %s: %w", r.Name, err)
	}
	r.state.Sent++
	r.state.Last, r.state.Error = time.Now().UTC(), ""
	return 0, nil
}
