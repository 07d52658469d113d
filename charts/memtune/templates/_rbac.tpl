{{/* All that the operator does to jobs and to what they own. A golden test holds the list. */}}
{{- define "memtune.jobRules" -}}
- apiGroups: [memtune.dev]
  resources: [memorytunedjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [memtune.dev]
  resources: [memorytunedjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "memtune.subjects" -}}
- kind: ServiceAccount
  name: {{ include "memtune.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
