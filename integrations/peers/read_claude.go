package peers

import (
	"slices"
	"strings"
)

// claudeAside are settings of Claude Code that open no destination and close none (code.claude.com/docs/en/settings,
// and its schema at json.schemastore.org, read 2026-11-28).
const claudeAside = `$schema apiKeyHelper autoMemoryEnabled autoUpdatesChannel autoUpdates awsCredentialExport awsAuthRefresh claudeMdExcludes
	cleanupPeriodDays env attribution includeGitInstructions includeCoAuthoredBy plansDirectory respectGitignore language
	model availableModels modelOverrides effortLevel fastMode fastModePerSessionOptIn feedbackSurveyRate
	enableAllProjectMcpServers enabledMcpjsonServers disabledMcpjsonServers allowedMcpServers deniedMcpServers
	httpHookAllowedEnvVars hooks disableAllHooks allowedChannelPlugins allowedHttpHookUrls allowManagedHooksOnly
	allowManagedPermissionRulesOnly statusLine fileSuggestion enabledPlugins extraKnownMarketplaces
	strictKnownMarketplaces skippedMarketplaces skippedPlugins forceLoginMethod forceLoginOrgUUID otelHeadersHelper
	outputStyle skipWebFetchPreflight spinnerVerbs spinnerTipsEnabled spinnerTipsOverride terminalProgressBarEnabled
	showTurnDuration skillOverrides prefersReducedMotion prUrlTemplate alwaysThinkingEnabled companyAnnouncements
	teammateMode worktree parentSettingsBehavior pluginTrustMessage pluginConfigs allowManagedMcpServersOnly
	blockedMarketplaces agent autoMemoryDirectory autoMode channelsEnabled defaultShell disableDeepLinkRegistration
	disableSkillShellExecution forceRemoteSettingsRefresh minimumVersion showClearContextOnPlanAccept
	showThinkingSummaries skipDangerousModePermissionPrompt strictPluginOnlyCustomization tui viewMode
	useAutoModeDuringPlan voiceEnabled wslInheritsWindowsSettings subagentStatusLine advisorModel autoCompactEnabled
	disableAgentView editorMode enforceAvailableModels fallbackModel fileCheckpointingEnabled gcpAuthRefresh
	managedMcpServers skillListingMaxDescChars preferredNotifChannel pluginSuggestionMarketplaces
	requiredMaximumVersion requiredMinimumVersion respondToBashCommands skillListingBudgetFraction sshConfigs
	sshHostAllowlist theme voice wheelScrollAccelerationEnabled disableBundledSkills awaySummaryEnabled
	autoScrollEnabled allowAllClaudeAiMcps agentPushNotifEnabled axScreenReader claudeMd disableArtifact disableAutoMode
	disableClaudeAiConnectors disableRemoteControl disableWorkflows footerLinksRegexes inputNeededNotifEnabled
	policyHelper remoteControlAtStartup syntaxHighlightingDisabled verbose workflowKeywordTriggerEnabled
	askUserQuestionTimeout teammateDefaultModel workflowSizeGuideline enableArtifact permissionExplainerEnabled diffTool
	externalEditorContext autoConnectIde autoInstallIdeExtension emojiCompletionEnabled vimInsertModeRemaps
	processWrapper forceLoginGatewayUrl disableSideloadFlags browserExternalPageTools disableBrowserExternalNavigation
	disableMobileSimulatorTools requireCoworkFullVmSandbox terminalTitleFromRename mcpServers ignorePatterns`

func readClaude(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	var network srtNetwork
	var p claudePermissions
	s := schema{
		"sandbox": fields(schema{"network": fields(network.schema())}.aside(`enabled failIfUnavailable autoAllowBashIfSandboxed
			excludedCommands allowUnsandboxedCommands enableWeakerNestedSandbox enableWeakerNetworkIsolation allowAppleEvents
			ignoreViolations filesystem credentials ripgrep bwrapPath socatPath enabledPlatforms`)),
		"permissions": fields(schema{"allow": into(&p.allow), "ask": into(&p.ask), "deny": into(&p.deny), "defaultMode": into(&p.mode)}.
			aside("additionalDirectories disableBypassPermissionsMode disableAutoMode")),
	}.aside(claudeAside)
	if err := r.take(top, s); err != nil {
		return err
	}
	return r.claude(network, p)
}

// claudePermissions are rules for tools, of which those of WebFetch are about hosts. A deny comes before an ask, and an ask
// before an allow. Claude Code adds those hosts to the lists of its sandbox.
type claudePermissions struct {
	allow, ask, deny []word
	mode             string
}

func (r *reading) claude(network srtNetwork, p claudePermissions) error {
	allow, anyAllowed, err := r.fetched(p.allow, true)
	if err != nil {
		return err
	}
	ask, anyAsked, err := r.fetched(p.ask, false)
	if err != nil {
		return err
	}
	deny, anyDenied, err := r.fetched(p.deny, false)
	if err != nil {
		return err
	}
	if err := r.denies(srtNetwork{denied: slices.Concat(deny, network.denied), addresses: network.addresses}); err != nil {
		return err
	}
	askSays := r.asks
	if p.mode == "dontAsk" && len(ask) > 0 {
		r.stricter("defaultMode dontAsk: what ask has is denied")
		askSays = r.deny
	}
	if err := r.hostPorts(askSays, ask, anyDepth); err != nil {
		return err
	}
	for _, w := range network.allowed {
		if host, ports, _ := cutPort(w.text); host == "*" && r.widens(w.text, "the sandbox of Claude Code refuses it as too broad") {
			r.allow(w.text, just(everything), clause{ports: ports})
		}
	}
	named := slices.DeleteFunc(network.allowed, func(w word) bool { host, _, _ := cutPort(w.text); return host == "*" })
	if err := r.hostPorts(r.allow, named, anyDepth); err != nil {
		return err
	}
	switch {
	case anyDenied:
		for _, w := range allow {
			r.stricterf("%s is left out: permissions.deny has WebFetch for all hosts", w.text)
		}
		return nil
	case anyAsked && p.mode == "dontAsk":
		return nil
	case anyAsked:
		return r.hostPorts(r.asks, allow, anyDepth)
	case anyAllowed && r.widens("WebFetch without a domain", "every host is fetched without a question, by Claude Code itself, and not by its commands"):
		r.allow("WebFetch", just(everything), clause{ports: webPorts})
	}
	return r.hostPorts(r.allow, allow, anyDepth)
}

// fetched are the hosts of WebFetch(domain:HOST) among rules. all reports whether a rule is about WebFetch for all hosts.
func (r *reading) fetched(rules []word, allows bool) (hosts []word, all bool, err error) {
	for _, rule := range rules {
		rest, ok := strings.CutPrefix(strings.TrimSpace(rule.text), "WebFetch")
		host, hasDomain := strings.CutPrefix(rest, "(domain:")
		host, closed := strings.CutSuffix(strings.TrimSpace(host), ")")
		switch {
		case !ok || rest != "" && rest[0] != '(':
			r.left(rule.text)
		case rest == "", rest == "(*)", hasDomain && closed && strings.TrimSpace(host) == "*":
			all = true
		case hasDomain && closed:
			hosts = append(hosts, word{strings.TrimSpace(host), rule.at})
		case allows:
			r.stricterf("%s is left out: it is not of the form WebFetch(domain:HOST)", rule.text)
		default:
			return nil, false, rule.at.errorf("%q is not of the form WebFetch(domain:HOST), so this import cannot keep what it refuses", rule.text)
		}
	}
	return hosts, all, nil
}
