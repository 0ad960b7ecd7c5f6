// Package githubapi knows the part of GitHub's GraphQL interface that a rule can let pass for some repositories: mutations
// whose inputs name everything by node id, and the question to which repository such an id belongs. It sends nothing.
package githubapi

import (
	"maps"
	"slices"
	"strings"
)

// Date is when the tables were last compared with GitHub's public schema and with what gh sends.
const Date = "2026-11-29"

// A Mutation says what the input of a mutation may hold. Everything else in an input is refused.
type Mutation struct {
	Groups  []string            // of the preset: "pulls", "issues"
	IDs     []string            // members that hold node ids of a repository, or lists of them
	People  []string            // members that hold node ids of people and teams, or lists of them
	Plain   []string            // members that hold a text, a number or a word, and name nothing
	Objects map[string][]string // members that hold objects, each with plain members
	Logins  []string            // members that hold logins of people, or lists of them
}

// MutationNamed returns a row of the table, or nil.
func MutationNamed(name string) *Mutation {
	if m, ok := mutations[name]; ok {
		return &m
	}
	return nil
}

// MutationNames returns all names of the table in order.
func MutationNames() []string { return slices.Sorted(maps.Keys(mutations)) }

// MutationsOf returns the names of the mutations of some groups, in order.
func MutationsOf(groups ...string) (names []string) {
	for _, name := range MutationNames() {
		if slices.ContainsFunc(mutations[name].Groups, func(group string) bool { return slices.Contains(groups, group) }) {
			names = append(names, name)
		}
	}
	return names
}

// Reads are the fields at the root of queries.
func Reads() []string {
	return strings.Fields("__schema __type codeOfConduct codesOfConduct id license licenses meta node nodes organization rateLimit relay " +
		"repository repositoryOwner resource search securityAdvisories securityAdvisory securityVulnerabilities topic user viewer")
}

// mutations leaves out what changes branches, files, settings or repositories, what merges, projects, which belong to no
// repository, and bots by id or login: an agent of GitHub that is assigned writes branches of its own.
var mutations = map[string]Mutation{
	"createPullRequest":               of("pulls", "repositoryId headRepositoryId", "", "baseRefName headRefName title body draft maintainerCanModify"),
	"updatePullRequest":               of("pulls", "pullRequestId labelIds milestoneId", "assigneeIds", "baseRefName title body state maintainerCanModify"),
	"closePullRequest":                of("pulls", "pullRequestId", "", ""),
	"reopenPullRequest":               of("pulls", "pullRequestId", "", ""),
	"markPullRequestReadyForReview":   of("pulls", "pullRequestId", "", ""),
	"convertPullRequestToDraft":       of("pulls", "pullRequestId", "", ""),
	"requestReviews":                  of("pulls", "pullRequestId", "userIds teamIds", "union"),
	"requestReviewsByLogin":           byLogin(of("pulls", "pullRequestId", "", "union", "teamSlugs"), "userLogins"),
	"addPullRequestReview":            reviewed(of("pulls", "pullRequestId", "", "commitOID body event")),
	"submitPullRequestReview":         of("pulls", "pullRequestId pullRequestReviewId", "", "event body"),
	"updatePullRequestReview":         of("pulls", "pullRequestReviewId", "", "body"),
	"addPullRequestReviewComment":     of("pulls", "pullRequestId pullRequestReviewId inReplyTo", "", "commitOID body path position"),
	"updatePullRequestReviewComment":  of("pulls", "pullRequestReviewCommentId", "", "body"),
	"addPullRequestReviewThread":      of("pulls", "pullRequestId pullRequestReviewId", "", "path body line side startLine startSide subjectType"),
	"addPullRequestReviewThreadReply": of("pulls", "pullRequestReviewId pullRequestReviewThreadId", "", "body"),
	"resolveReviewThread":             of("pulls", "threadId", "", ""),
	"unresolveReviewThread":           of("pulls", "threadId", "", ""),

	"createIssue": of("issues", "repositoryId labelIds milestoneId parentIssueId", "assigneeIds", "title body issueTemplate"),
	"updateIssue": of("issues", "id labelIds milestoneId", "assigneeIds", "title body state stateReason"),
	"closeIssue":  of("issues", "issueId duplicateIssueId", "", "stateReason"),
	"reopenIssue": of("issues", "issueId", "", ""),

	"addComment":                    of("issues pulls", "subjectId", "", "body"),
	"updateIssueComment":            of("issues pulls", "id", "", "body"),
	"addAssigneesToAssignable":      of("issues pulls", "assignableId", "assigneeIds", ""),
	"removeAssigneesFromAssignable": of("issues pulls", "assignableId", "assigneeIds", ""),
	"replaceActorsForAssignable":    byLogin(of("issues pulls", "assignableId", "actorIds", ""), "actorLogins"),
	"addLabelsToLabelable":          of("issues pulls", "labelableId labelIds", "", ""),
	"removeLabelsFromLabelable":     of("issues pulls", "labelableId labelIds", "", ""),
	"clearLabelsFromLabelable":      of("issues pulls", "labelableId", "", ""),
}

// of makes a row of names that are separated by spaces. texts are members that hold lists of texts.
func of(groups, ids, people, plain string, texts ...string) Mutation {
	m := Mutation{Groups: strings.Fields(groups), IDs: strings.Fields(ids), People: strings.Fields(people), Plain: append(strings.Fields(plain), "clientMutationId"), Objects: map[string][]string{}}
	for _, name := range texts {
		m.Objects[name] = []string{}
	}
	return m
}

// byLogin adds members that hold logins.
func byLogin(m Mutation, members ...string) Mutation {
	m.Logins = members
	return m
}

// CheckLogin reports whether text can be the login of a person. Those of bots end with "[bot]", and GitHub's own agents are
// called Copilot and copilot-….
func CheckLogin(text string) bool {
	return text != "" && len(text) <= 39 && !strings.HasPrefix(strings.ToLower(text), "copilot") && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	})
}

// reviewed adds the comments of a review.
func reviewed(m Mutation) Mutation {
	m.Objects["comments"] = []string{"path", "position", "body"}
	m.Objects["threads"] = []string{"path", "line", "side", "startLine", "startSide", "body"}
	return m
}
