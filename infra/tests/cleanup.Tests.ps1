#Requires -Version 7.2
#Requires -Modules @{ ModuleName = 'Pester'; ModuleVersion = '5.5' }
# Run with: Invoke-Pester infra/tests
# Az is replaced (Azure.ps1): what is asked of Azure is tested here, what Azure then does is not.

BeforeAll {
    . (Join-Path $PSScriptRoot 'Azure.ps1')
    $cleanup = Join-Path $PSScriptRoot '../cleanup.ps1'
    $payer = [guid] '11111111-1111-1111-1111-111111111111'
}

Describe 'cleanup.ps1' {
    BeforeEach {
        foreach ($name in (Get-Command -Name '*-Az*' -CommandType Function).Name) {
            Mock -CommandName $name
        }
        Mock Get-AzContext { [pscustomobject] @{ Account = 'somebody' } }
        Mock Get-AzResource {
            [pscustomobject] @{ Name = 'server'; ResourceId = '/server'; ResourceType = 'Microsoft.Sql/servers' }
            [pscustomobject] @{ Name = 'endpoint'; ResourceId = '/endpoint'; ResourceType = 'Microsoft.Network/privateEndpoints' }
        }
    }

    It 'has nothing to do where there is no group' {
        & $cleanup -SubscriptionId $payer -Force
        Should -Invoke Remove-AzResourceGroup -Times 0 -Exactly
        Should -Invoke Remove-AzResource -Times 0 -Exactly
    }

    It 'deletes a group that create.ps1 made, without asking if it is told so' {
        Mock Get-AzResourceGroup { [pscustomobject] @{ Tags = @{ 'made-by' = 'celery-sqlbeat' } } }
        & $cleanup -SubscriptionId $payer -Force
        Should -Invoke Set-AzContext -Times 1 -Exactly -ParameterFilter { $Subscription -eq "$payer" }
        Should -Invoke Remove-AzResourceGroup -Times 1 -Exactly -ParameterFilter { $Name -eq 'cristp-reltaskexec' }
    }

    It 'deletes nothing with -WhatIf, whatever else is said' {
        Mock Get-AzResourceGroup { [pscustomobject] @{ Tags = @{ 'made-by' = 'celery-sqlbeat' } } }
        & $cleanup -SubscriptionId $payer -WhatIf
        & $cleanup -SubscriptionId $payer -WhatIf -Force
        Should -Invoke Remove-AzResourceGroup -Times 0 -Exactly
    }

    It 'asks first: where nobody can answer, nothing is deleted' {
        Mock Get-AzResourceGroup { [pscustomobject] @{ Tags = @{ 'made-by' = 'celery-sqlbeat' } } }
        $arguments = '-NoProfile', '-NonInteractive', '-Command', @"
. '$PSScriptRoot/Azure.ps1'
function global:Get-AzContext { 'somebody' }
function global:Get-AzResourceGroup { [pscustomobject] @{ Tags = @{ 'made-by' = 'celery-sqlbeat' } } }
function global:Remove-AzResourceGroup { 'deleted' }
& '$cleanup' -SubscriptionId $payer
"@
        $output = & (Get-Process -Id $PID).Path @arguments 2>&1
        $LASTEXITCODE | Should -Not -Be 0
        $output | Should -Not -Contain 'deleted'
    }

    It 'leaves a group of somebody else, and deletes what bears the tag, dependent resources first' {
        Mock Get-AzResourceGroup { [pscustomobject] @{ Tags = $null } }
        $script:deleted = @()
        Mock Remove-AzResource { $script:deleted += $ResourceId }
        & $cleanup -SubscriptionId $payer -Force
        Should -Invoke Get-AzResource -Times 1 -Exactly -ParameterFilter { $Tag['made-by'] -eq 'celery-sqlbeat' }
        Should -Invoke Remove-AzResourceGroup -Times 0 -Exactly
        $deleted | Should -Be '/endpoint', '/server'
    }
}
