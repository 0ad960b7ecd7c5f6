package exchange

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/githubapi"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	nodesFor       = 5 * time.Minute  // an answer of the server holds
	nodesPatience  = 15 * time.Second // for one answer
	nodesBytes     = 256 << 10        // of one answer
	nodesOfSandbox = 1024             // answers that are kept
	nodesSandboxes = 256              // whose answers are kept; with one more all are forgotten
)

// knownNodes keeps what servers said of node ids, by sandbox: another may not have the right to know it. It is safe for
// concurrent use.
type knownNodes struct {
	mu sync.Mutex
	of map[string]map[nodeKey]knownNode
}

type nodeKey struct{ server, id string }

type knownNode struct {
	node  policy.Node
	until time.Time
}

// find returns what is known of ids, and the ids of which nothing is.
func (k *knownNodes) find(sandbox, server string, ids []string) (found map[string]policy.Node, unknown []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	found = map[string]policy.Node{}
	for _, id := range ids {
		if n, ok := k.of[sandbox][nodeKey{server, id}]; ok && now.Before(n.until) {
			found[id] = n.node
		} else {
			unknown = append(unknown, id)
		}
	}
	return found, unknown
}

// keep adds answers of a server. Ids that it did not know are asked for again.
func (k *knownNodes) keep(sandbox, server string, answers map[string]policy.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil || len(k.of) >= nodesSandboxes && k.of[sandbox] == nil {
		k.of = map[string]map[nodeKey]knownNode{}
	}
	mine := k.of[sandbox]
	if mine == nil || len(mine)+len(answers) > nodesOfSandbox {
		mine = map[nodeKey]knownNode{}
		k.of[sandbox] = mine
	}
	until := time.Now().Add(nodesFor)
	for id, n := range answers {
		if n != (policy.Node{}) {
			mine[nodeKey{server, id}] = knownNode{n, until}
		}
	}
}

// AskNodes implements [egress.RequestReader]. It sends the question to the server of the request, over a second connection,
// with the same credential. The question is a request of the sandbox that the policy decides and the log has.
func (x *Exchange) AskNodes(ctx context.Context, f *egress.Flow, ids []string) (map[string]policy.Node, *policy.Decision) {
	known := &x.Client.Forwarder.nodes
	server := x.Destination.String() + x.Target.Path
	found, unknown := known.find(f.Sandbox(), server, ids)
	if len(unknown) == 0 {
		return found, nil
	}
	if x.Tunnel == nil {
		return nil, unasked(errors.New("egressd asks for them over TLS alone"))
	}
	answers, err := x.askNodes(ctx, unknown)
	if err != nil {
		return nil, unasked(err)
	}
	known.keep(f.Sandbox(), server, answers)
	maps.Copy(found, answers)
	return found, nil
}

// unasked refuses a request because the server did not say what its node ids are.
func unasked(err error) *policy.Decision {
	d := policy.Decision{Class: policy.GraphQLDenied, Rule: "nodes", Layer: policy.Builtin}
	why := err.Error()
	if r, ok := errors.AsType[*egress.Refusal](err); ok {
		why = r.Decision.Reason
	}
	d.Reason = "the repositories of its node ids could not be found out: " + why
	return &d
}

// askNodes sends the question and reads the answer.
func (x *Exchange) askNodes(ctx context.Context, ids []string) (answers map[string]policy.Node, err error) {
	body := githubapi.AskNodes(ids)
	h := head{method: http.MethodPost, wanted: ctx, target: http1.Target{Path: x.Target.Path}, body: func() ([]byte, *policy.Decision) { return body, nil }, fields: http1.Fields{
		{Name: "Accept", Value: "application/json"}, {Name: "Accept-Encoding", Value: "identity"}, {Name: "Content-Type", Value: "application/json"},
		{Name: "Content-Length", Value: strconv.Itoa(len(body))}, {Name: "User-Agent", Value: "egressd"},
	}}
	for _, value := range x.Fields.Values("Authorization") {
		h.fields = append(h.fields, http1.Field{Name: "Authorization", Value: value})
	}
	set := x.Client.Forwarder.Gate.SetFields(x.Destination)
	h.fields, _ = withSet(h.fields, set)
	flow, err := x.Tunnel.Request(ctx, &policy.HTTPRequest{
		Method: http.MethodPost, Path: h.target.Path, Header: headerOf(h.fields), BodySize: int64(len(body)), Authority: x.Authority,
		Body: &policy.Body{Bytes: body, Content: body, Ended: true}, Own: true,
	}, nil)
	if err != nil {
		return nil, err
	}
	end := egress.End{}
	defer func() {
		end.Outcome = cmp.Or(end.Outcome, record.OutcomeClosed)
		if err != nil {
			end.Outcome = record.Outcome(AsRefusal(err).Decision.Class)
		}
		flow.Close(end)
	}()
	if !slices.Equal(set, flow.SetFields()) {
		return nil, flow.Failed(policy.CredentialUnavailable, "another policy came into force while the request was decided")
	}
	if err := flow.Guard("body").See(body); err != nil {
		return nil, err
	}
	if err := x.Client.Forwarder.Secrets.Load().add(flow, x.Destination, false, &h, &end); err != nil {
		return nil, err
	}
	if err := flow.Wait(ctx); err != nil { // no byte leaves before its record is durable
		return nil, err
	}
	conn, err := x.Tunnel.DialBeside(ctx, flow)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(nodesPatience))
	defer context.AfterFunc(ctx, func() { Abort(conn) })()
	out := http1.AppendRequest(nil, http.MethodPost, h.target.RequestURI(), append(http1.Fields{{Name: "Host", Value: HostField(x.Destination, 443)}, {Name: "Connection", Value: "close"}}, h.fields...))
	if over := flow.Spend(int64(len(out) + len(body))); over != nil {
		return nil, over
	}
	n, err := conn.Write(append(out, body...))
	end.Up = int64(n)
	if err != nil {
		return nil, flow.Failed(policy.NetworkReset, "")
	}
	answer, status, err := readAnswer(bufio.NewReader(conn), x.Client.Forwarder.Responses)
	end.Down, end.Status = int64(len(answer)), status
	if err != nil {
		return nil, flow.Failed(policy.MalformedResponse, err.Error())
	}
	answers, err = githubapi.ReadNodes(ids, answer)
	if err != nil {
		return nil, flow.Failed(policy.MalformedResponse, err.Error())
	}
	return answers, nil
}

// readAnswer reads a whole response to a question of egressd. The errors hold nothing of it.
func readAnswer(in *bufio.Reader, limits http1.Limits) (body []byte, status int, err error) {
	resp, err := http1.ReadResponse(in, limits)
	if err != nil {
		return nil, 0, errors.New("the server gave no answer")
	}
	framing, err := resp.Body(http.MethodPost)
	switch {
	case resp.Status != http.StatusOK:
		return nil, resp.Status, fmt.Errorf("the server answered %d", resp.Status)
	case err != nil || !plainCoding(resp.Fields.Values("Content-Encoding")):
		return nil, resp.Status, errors.New("the server's answer cannot be read")
	}
	body, err = io.ReadAll(io.LimitReader(http1.NewBodyReader(in, framing, limits), nodesBytes+1))
	switch {
	case err != nil:
		return body, resp.Status, errors.New("the server's answer broke off")
	case len(body) > nodesBytes:
		return body, resp.Status, fmt.Errorf("the server's answer is longer than %d bytes", nodesBytes)
	}
	return body, resp.Status, nil
}
