package sandbox

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A register is one list of sandboxes. It is never changed.
type register struct {
	byName        map[string]*registered // templates by their own names, which no sandbox can have
	byUser        map[string]*registered // those with a token that are not templates
	templates     []*registered
	byListener    map[string]*registered
	byEnter       map[string]*registered
	byUID         map[uint32]*registered
	bySource      map[netip.Prefix]*registered
	byCertificate map[string]*registered
	lengths       []int // of the prefixes in bySource, longest first
	docker        []*registered
	absent        *registered // compared with where there is none, so that both take the same time
}

// Identify returns the sandbox of a peer, or [ErrUnknown]. On ErrUnknown the result still names the peer's
// container, if the container is known.
//
// If the listener, user, address, container or certificate of a peer belongs to a sandbox, the peer is that sandbox, and a
// claim of another name makes it unknown. A peer is unknown, too, if two of these belong to different sandboxes, or if the
// peer lacks one that its sandbox requires. A proxy password alone identifies only a peer that nothing else identifies.
func (d *Directory) Identify(p Peer) (policy.Sandbox, error) {
	r := d.known.Load()
	if strings.HasPrefix(p.Listener, attachmentPrefix) {
		return d.attachments.identify(r, &p)
	}
	if len(r.byName) == 0 {
		return policy.Sandbox{Name: Default}, nil
	}
	k, expected := d.container(r, &p)
	var who policy.Sandbox
	if k != nil {
		who.Container = k.Container
	}
	e := r.absent
	if k != nil || !expected {
		e = r.evident(&p, k)
	}
	if e == nil {
		e = r.named(p.User)
	}
	if !e.proved(&p) {
		return who, ErrUnknown
	}
	who.Name, who.Kind, who.Labels = e.nameFor(&p), e.sandbox.Kind, e.sandbox.Labels
	if e.name != (policy.Template{}) {
		who.Template = e.sandbox.Name
	}
	return who, nil
}

// A Holder is what connections are counted by. Equal holders are the same holder.
type Holder struct {
	Sandbox string // empty if the peer is known by its source only

	addr     netip.Addr // of IPv6, its network of 64 bits: who has one address there has all
	listener string     // of a unix socket
	uid      uint32
}

// Holder returns the holder of a connection, without regard to credentials: the sandbox that the peer's
// listener, user, address, container or certificate belongs to, or else the peer's source. Only credentials tell the
// sandboxes of a template apart, so a peer of a template is known by its source.
func (d *Directory) Holder(p *Peer) Holder {
	r := d.known.Load()
	if strings.HasPrefix(p.Listener, attachmentPrefix) {
		if who, err := d.attachments.identify(r, &Peer{Listener: p.Listener}); err == nil {
			return Holder{Sandbox: who.Name}
		}
		return Holder{listener: p.Listener}
	}
	if k, expected := d.container(r, p); len(r.byName) > 0 && (k != nil || !expected) {
		if e := r.evident(p, k); e != nil && e != r.absent && e.name == (policy.Template{}) {
			return Holder{Sandbox: e.sandbox.Name}
		}
	}
	addr := p.Addr.Addr().Unmap().WithZone("")
	switch {
	case !addr.IsValid():
		return Holder{listener: p.Listener, uid: p.UID}
	case addr.Is6():
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return Holder{addr: addr}
}

// Template returns the name of the template that a sandbox of this name is of, or "".
func (d *Directory) Template(name string) string {
	for _, e := range d.known.Load().templates {
		if _, ok := e.name.ID(name); ok {
			return e.sandbox.Name
		}
	}
	return ""
}

type registered struct {
	sandbox policy.Sandbox
	user    string          // of the proxy
	name    policy.Template // only of a template, as userOf
	userOf  policy.Template
	keys    evidenceKinds
	token   [sha256.Size]byte
	uids    []uint32
	docker  policy.Containers
}

// evidenceKinds are the kinds of evidence: those that an entry requires, or those by which a peer matches an entry.
type evidenceKinds uint8

const (
	byToken evidenceKinds = 1 << iota
	byListener
	byUID
	bySource
	byCertificate
	byEnter // who comes there is the sandbox, and nobody else is by it
	byContainer

	evidence = byListener | byUID | bySource | byCertificate | byContainer
)

// kind names the strongest evidence of an entry.
func (k evidenceKinds) kind() string {
	switch {
	case k&byCertificate != 0:
		return "certificate"
	case k&byUID != 0:
		return "uid"
	case k&byContainer != 0:
		return "container"
	case k&(byListener|byEnter) != 0:
		return "listener"
	case k&bySource != 0:
		return "source"
	default:
		return "token"
	}
}

// Sandbox returns what [Directory.Identify] returns for a peer of this entry.
func (given *Entry) Sandbox() policy.Sandbox {
	if k := given.keys(); k != 0 {
		return policy.Sandbox{Name: given.Name, Kind: k.kind()}
	}
	return policy.Sandbox{Name: given.Name}
}

func newRegister(entries []Entry) (*register, error) {
	r := &register{
		byName: map[string]*registered{}, byUser: map[string]*registered{}, byListener: map[string]*registered{}, byEnter: map[string]*registered{}, byUID: map[uint32]*registered{},
		bySource: map[netip.Prefix]*registered{}, byCertificate: map[string]*registered{}, absent: new(registered),
	}
	if _, err := rand.Read(r.absent.token[:]); err != nil {
		return nil, err
	}
	for i := range entries {
		if err := r.add(&entries[i]); err != nil {
			return nil, err
		}
	}
	for prefix := range r.bySource {
		r.lengths = append(r.lengths, prefix.Bits())
	}
	slices.Sort(r.lengths)
	r.lengths = slices.Compact(r.lengths)
	slices.Reverse(r.lengths)
	return r, nil
}

func (r *register) add(given *Entry) error {
	if _, twice := r.byName[given.Name]; twice || given.Name == "" {
		return fmt.Errorf("sandbox %q is listed twice, or has no name", given.Name)
	}
	e := &registered{sandbox: given.Sandbox(), user: cmp.Or(given.User, given.Name), keys: given.keys(), token: sha256.Sum256([]byte(given.Token)), uids: given.UIDs, docker: given.Docker}
	r.byName[given.Name] = e
	switch {
	case e.keys == 0:
		return fmt.Errorf("sandbox %q has neither a token, a listener, a uid, a source, a container nor a certificate, so nobody could be it", given.Name)
	case e.keys&byUID != 0 && e.keys&(bySource|byCertificate) != 0:
		return fmt.Errorf("sandbox %q has a uid, which only unix sockets know, and a source or a certificate, which they do not, so nobody could be it", given.Name)
	}
	if err := r.addUser(e); err != nil {
		return err
	}
	return r.claim(e, given)
}

// addUser makes e the only entry that its proxy user means.
func (r *register) addUser(e *registered) error {
	var named, asked bool
	e.name, named = policy.ParseTemplate(e.sandbox.Name)
	e.userOf, asked = policy.ParseTemplate(e.user)
	switch {
	case named != asked:
		return fmt.Errorf("sandbox %q has a name or a user for many sandboxes, and not both", e.sandbox.Name)
	case named && e.keys&byToken == 0, named && e.keys&(byEnter|byContainer) != 0:
		return fmt.Errorf("sandbox %q is a template, and needs a token, and no socket to enter by and no container", e.sandbox.Name)
	case named:
		r.templates = append(r.templates, e)
	case e.keys&byToken != 0:
		return assign(r.byUser, e.user, e, "user")
	}
	return nil
}

func (given *Entry) keys() (k evidenceKinds) {
	for key, has := range map[evidenceKinds]bool{
		byToken: given.Token != "", byListener: given.Listener != "", byUID: len(given.UIDs) > 0,
		bySource: len(given.Sources) > 0, byCertificate: given.Certificate != "", byEnter: given.Enter != "",
		byContainer: given.Docker.Given(),
	} {
		if has {
			k |= key
		}
	}
	return k
}

// claim makes e the owner of its listener, users, addresses, containers and certificate. Each has one owner
// only.
func (r *register) claim(e *registered, given *Entry) error {
	if given.Listener != "" {
		if err := assign(r.byListener, given.Listener, e, "listener"); err != nil {
			return err
		}
	}
	if given.Enter != "" {
		if err := assign(r.byEnter, given.Enter, e, "socket to enter by"); err != nil {
			return err
		}
	}
	for _, uid := range given.UIDs {
		if err := assign(r.byUID, uid, e, "uid"); err != nil {
			return err
		}
	}
	for _, prefix := range given.Sources {
		if prefix != prefix.Masked() || !prefix.IsValid() || prefix.Addr().Is4In6() {
			return fmt.Errorf("sandbox %q: the source %s is not canonical", given.Name, prefix)
		}
		if err := assign(r.bySource, prefix, e, "source"); err != nil {
			return err
		}
	}
	if given.Docker.Given() {
		if slices.ContainsFunc(r.docker, func(other *registered) bool { return other.docker == given.Docker }) {
			return fmt.Errorf("sandbox %q shares the containers with %s with another", given.Name, given.Docker.String())
		}
		r.docker = append(r.docker, e)
	}
	if given.Certificate != "" {
		return assign(r.byCertificate, given.Certificate, e, "certificate")
	}
	return nil
}

func assign[K comparable](owners map[K]*registered, key K, e *registered, what string) error {
	if other, twice := owners[key]; twice {
		return fmt.Errorf("sandboxes %q and %q share the %s %v", other.sandbox.Name, e.sandbox.Name, what, key)
	}
	owners[key] = e
	return nil
}

// evident returns the entry that owns the peer's listener, user, address, container and certificate, or nil if none
// has an owner. It returns absent if two of them have different owners, or if the entry requires one that the peer lacks.
func (r *register) evident(p *Peer, in *Container) *registered {
	at := matching{absent: r.absent}
	r.owners(p, in, at.add)
	if at.found != nil && at.found.keys&evidence != at.fits {
		return r.absent
	}
	return at.found
}

// owners calls say with the owner of each piece of evidence.
func (r *register) owners(p *Peer, in *Container, say func(evidenceKinds, *registered)) {
	note := func(key evidenceKinds, e *registered) {
		if e != nil {
			say(key, e)
		}
	}
	note(byListener, r.byListener[p.Listener])
	if p.HasUID {
		note(byUID, r.byUID[p.UID])
	}
	note(bySource, r.atSource(p.Addr.Addr()))
	for _, e := range r.holding(in) { // of which there should be one
		note(byContainer, e)
	}
	for _, name := range p.Certificate {
		note(byCertificate, r.byCertificate[name])
	}
}

// A matching is the one owner that owners names, or absent if it names several.
type matching struct {
	found, absent *registered
	fits          evidenceKinds
}

func (at *matching) add(key evidenceKinds, e *registered) {
	if at.found != nil && at.found != e {
		at.found = at.absent
		return
	}
	at.found, at.fits = e, at.fits|key
}

// atSource returns the owner of the longest prefix that contains addr. A link-local IPv6 address names a
// different host on each link, so no prefix contains it.
func (r *register) atSource(addr netip.Addr) *registered {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() || addr.Is6() && addr.IsLinkLocalUnicast() {
		return nil
	}
	for _, bits := range r.lengths {
		prefix, err := addr.Prefix(bits)
		if err != nil { // longer than an IPv4 address is
			continue
		}
		if e := r.bySource[prefix]; e != nil {
			return e
		}
	}
	return nil
}

// holding returns the entries that a container belongs to. The container may be nil.
func (r *register) holding(k *Container) (all []*registered) {
	if k == nil {
		return nil
	}
	for _, e := range r.docker {
		if e.docker.Holds(k.Name, k.Labels) {
			all = append(all, e)
		}
	}
	return all
}

// named returns the entry that a token alone identifies, or absent.
func (r *register) named(user string) *registered {
	e := r.byUser[user]
	for _, t := range r.templates {
		if _, ok := t.userOf.ID(user); ok {
			e = t
		}
	}
	if e != nil && e.keys&^byEnter == byToken {
		return e
	}
	return r.absent
}

// isUser reports whether a proxy user means e.
func (e *registered) isUser(user string) bool {
	_, ok := e.userOf.ID(user)
	return ok || user == e.user && e.userOf == (policy.Template{})
}

// nameFor returns the name of the sandbox that p has proved to be.
func (e *registered) nameFor(p *Peer) string {
	if id, ok := e.userOf.ID(p.User); ok {
		return e.name.Name(id)
	}
	return e.sandbox.Name
}

// proved reports whether the peer's claim names e, with the token that e requires. It takes the same time for
// each entry, absent included.
func (e *registered) proved(p *Peer) bool {
	given := sha256.Sum256([]byte(p.Password))
	same := subtle.ConstantTimeCompare(given[:], e.token[:]) == 1
	switch {
	case e.keys&^byEnter == 0: // absent, or only to be entered
		return false
	case e.keys&byToken != 0:
		return p.HasCredentials && e.isUser(p.User) && same
	default:
		return !p.HasCredentials || p.User == e.sandbox.Name
	}
}
